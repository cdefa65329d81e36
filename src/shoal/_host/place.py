"""What a host knows of the machine that it is on: its name, its address, where Python looks for modules."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

INTERFACE = "SHOAL_HOST_INTERFACE"


def machine() -> str:
    """Return the name of this machine: SLURM's where it has given one."""
    return os.environ.get("SLURMD_NODENAME") or os.environ.get("SHOAL_NODE_NAME") or socket.gethostname()


def import_path(drivers: Sequence[str]) -> list[str]:
    """Return where a worker looks for modules: where the driver does, if that is here, then where this host does."""
    here = [path for path in drivers if os.path.exists(path)]
    return [*here, *(path or os.getcwd() for path in sys.path if path not in here)]


def network_variables(endpoint: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Return what workers of several machines need to find each other: this machine's address, and its interface.

    The address is that of the interface in ``$SHOAL_HOST_INTERFACE``, else of the one on the way to the supervisor.
    """
    name = environment.get(INTERFACE, "")
    address = address_of(name) if name else towards(endpoint)
    found = {"SHOAL_HOST_ADDRESS": address}
    name = name or interface_of(address)
    if name:
        found |= {
            variable: name for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME") if variable not in environment
        }
    return found


def towards(endpoint: str) -> str:
    """Return the address of the interface on the way to an endpoint, ``tcp://host:port``. Nothing is sent."""
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    family, kind, protocol, _, target = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(target)
        return str(probe.getsockname()[0])


def interface_of(address: str) -> str:
    """Return the name of the interface that has an address; nothing if none has."""
    import psutil

    for name, entries in psutil.net_if_addrs().items():
        if any(entry.address.partition("%")[0] == address for entry in entries):
            return name
    return ""


def address_of(interface: str) -> str:
    """Return the address of a network interface, IPv4 where it has one; raise ``OSError`` if it has none."""
    import psutil

    interfaces = psutil.net_if_addrs()
    for family in (socket.AF_INET, socket.AF_INET6):
        for entry in interfaces.get(interface, []):
            if entry.family == family:
                return str(entry.address).partition("%")[0]
    raise OSError(
        f"${INTERFACE}={interface!r}: there is no such interface here, or it has no address; there are "
        f"{', '.join(interfaces)}"
    )


def host_environment(environment: Mapping[str, str], *directories: str) -> dict[str, str]:
    """Return the environment of a host's process, which finds this shoal even where a script has put it on the path.

    Parameters
    ----------
    directories : str
        Further places to look for modules in.
    """
    given = filter(None, [environment.get("PYTHONPATH")])
    paths = [str(Path(__file__).parents[2]), *directories, *given]
    return {**environment, "PYTHONPATH": os.pathsep.join(paths)}
