"""Addresses of this machine that other machines reach."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence

import psutil

from shoal._core.errors import ShoalError
from shoal._host.place import INTERFACE, towards


def own_address(others: Sequence[str] = ()) -> str:
    """Return an address of this machine: of the interface in ``$SHOAL_HOST_INTERFACE``, else on the way to others.

    Parameters
    ----------
    others : sequence of str
        Names or addresses of machines that are to reach this one; those that have no address are passed over.

    Raises
    ------
    ShoalError
        If there is no interface of the name in the variable.
    """
    if name := os.environ.get(INTERFACE):
        return address_of(name)
    here = socket.gethostname()
    for other in [*(o for o in others if o.partition(".")[0] != here.partition(".")[0]), "192.0.2.1", "2001:db8::1"]:
        try:
            return towards(f"tcp://{other}:9")
        except OSError:
            continue  # it has no address here, or nothing leads there
    return "127.0.0.1"


def address_of(interface: str) -> str:
    """Return the address of a network interface, IPv4 where it has one."""
    interfaces = psutil.net_if_addrs()
    if interface not in interfaces:
        raise ShoalError(f"${INTERFACE}={interface!r}: there is no such interface; there are {', '.join(interfaces)}")
    found = {entry.family: entry.address for entry in interfaces[interface]}
    for family in (socket.AF_INET, socket.AF_INET6):
        if family in found:
            return found[family].partition("%")[0]
    raise ShoalError(f"${INTERFACE}={interface!r}: the interface has no address")
