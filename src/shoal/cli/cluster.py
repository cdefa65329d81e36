"""``shoal start``, ``status`` and ``stop``: a Ray cluster by hand, over Ray's own commands."""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from shoal._core.errors import ShoalError
from shoal._runtime.addresses import own_address
from shoal._runtime.requirements import require

TOKEN = Path("~/.ray/auth_token")


def add(commands: Any) -> None:
    """Say what the commands take."""
    start = commands.add_parser("start", help="make this machine part of a cluster", description=start_.__doc__)
    which = start.add_mutually_exclusive_group(required=True)
    which.add_argument("--head", action="store_true", help="begin a cluster, with this machine as its head")
    which.add_argument("--address", metavar="HOST:PORT", help="join the cluster whose head is there")
    start.add_argument("--port", type=int, default=6379, help="where the head listens (default: %(default)s)")
    start.add_argument("--node-ip-address", metavar="ADDRESS", help="this machine's address, if it has several")
    start.add_argument("--num-cpus", type=int, help="how many CPUs to give out (default: all)")
    start.add_argument("--num-gpus", type=int, help="how many GPUs to give out (default: all)")
    start.add_argument("--resources", metavar="JSON", help="custom resources, such as '{\"license\": 2}'")
    start.add_argument("--labels", metavar="A=B,C=D", help="labels for ScalingConfig(label_selector=...)")
    start.add_argument(
        "--dashboard-host",
        default="127.0.0.1",
        help="where Ray's dashboard and jobs listen (default: this machine only)",
    )
    start.add_argument("--block", action="store_true", help="stay in the foreground, for containers")
    start.set_defaults(run=start_)

    status = commands.add_parser("status", help="show the machines of a cluster, and what runs there")
    status.add_argument(
        "--address", default="auto", metavar="HOST:PORT", help="its head (default: this machine's cluster)"
    )
    status.set_defaults(run=status_)

    stop = commands.add_parser("stop", help="take this machine out of its cluster", description=stop_.__doc__)
    stop.add_argument("--force", action="store_true", help="do not wait for what runs here")
    stop.set_defaults(run=stop_)


def start_(options: argparse.Namespace) -> int:
    """Begin a cluster on this machine, or join one. Whoever joins or submits needs the token that the head has."""
    require("ray", extra="ray", tested="2.60", trainer="shoal start")
    address = options.node_ip_address or own_address([options.address.rpartition(":")[0]] if options.address else [])
    command = [f"--node-ip-address={address}"]
    if options.head:
        _make_token()
        command += ["--head", f"--port={options.port}", f"--dashboard-host={options.dashboard_host}"]
        # Ray 2.60 tells the server for ray:// this port before it is chosen, and that server then waits in vain.
        command += [f"--runtime-env-agent-port={_free_port(address)}"]
    else:
        from shoal.engines.ray import check_answers

        check_answers(options.address)
        command += [f"--address={options.address}"]
    for name in ("num_cpus", "num_gpus", "resources", "labels"):
        if getattr(options, name) is not None:
            command.append(f"--{name.replace('_', '-')}={getattr(options, name)}")
    if options.block:
        return _ray("start", *command, "--block").returncode
    done = _ray("start", *command, quiet=True)
    if done.returncode:
        raise ShoalError(_why_not(options, done.stdout + done.stderr))
    if options.head:
        print(f"The head runs at {address}:{options.port}. On each other machine:")
        print(f"  copy {TOKEN} from here, then: shoal start --address={address}:{options.port}")
        print(
            f"Scripts on these machines begin with shoal.init('auto'); from elsewhere: shoal submit --address {address}"
        )
    else:
        print(f"{address} is part of the cluster at {options.address}.")
    print("shoal status shows the cluster; shoal stop takes this machine out of it.")
    return 0


def status_(options: argparse.Namespace) -> int:
    """Print the machines of a cluster, what of them is used, and the runs in progress."""
    from shoal.engines.ray import RayEngine

    engine = RayEngine(options.address)
    try:
        print("\n".join(described(engine)))
    finally:
        engine.shutdown()
    return 0


def described(engine: Any) -> list[str]:
    """Return what there is of a cluster, for a person."""
    import ray

    nodes = engine.nodes()
    used, total = [
        {key: sum(side.get(key, 0.0) for side in sides) for key in ("CPU", "GPU")}
        for sides in ([node.taken for node in nodes], [node.total for node in nodes])
    ]
    lines = [f"Nodes:   {len(nodes)}"]
    lines += [f"{key}s:    {used[key]:g} used of {total[key]:g}" for key in ("CPU", "GPU")]
    free = [node for node in nodes if node.total.get("CPU", 0.0) - node.taken.get("CPU", 0.0) >= 1]
    lines.append(f"Workers: Ready ({len(free)} of {len(nodes)} machines have room)" if free else "Workers: no room now")
    for node in nodes:
        amounts = [
            f"{key} {node.taken.get(key, 0.0):g}/{node.total[key]:g}" for key in ("CPU", "GPU") if key in node.total
        ]
        lines.append(f"  {node.name.partition('/')[0]:20} {', '.join(amounts)}")
    groups = [g for g in ray.util.placement_group_table().values() if g["name"].startswith("shoal/")]
    running = [g for g in groups if g["state"] == "CREATED"]
    lines.append(f"Runs:    {len(running)}" + ("" if running else " in progress"))
    lines += [f"  {g['name'].removeprefix('shoal/')} on {len(g['bundles'])} machines" for g in running]
    return lines


def stop_(options: argparse.Namespace) -> int:
    """End what `shoal start` has started on this machine, and the workers on it."""
    require("ray", extra="ray", tested="2.60", trainer="shoal stop")
    done = _ray("stop", *(["--force"] if options.force else []), quiet=True)
    print("This machine is part of no cluster now." if done.returncode == 0 else done.stdout + done.stderr)
    return done.returncode


def _free_port(address: str) -> int:
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])


def _make_token() -> None:
    """Make the token that keeps strangers out of the cluster, unless there is one."""
    given = os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH")
    if not given and not TOKEN.expanduser().exists():
        done = _ray("get-auth-token", "--generate", quiet=True)
        if done.returncode:
            raise ShoalError(f"no token could be made: {done.stderr.strip()}")


def _ray(*arguments: str, quiet: bool = False) -> subprocess.CompletedProcess[str]:
    """Run a command of Ray's, its token authentication on."""
    environment = {"RAY_AUTH_MODE": "token", "RAY_USAGE_STATS_ENABLED": "0", **os.environ}
    command = [sys.executable, "-m", "ray.scripts.scripts", *arguments]
    return subprocess.run(command, capture_output=quiet, text=True, check=False, env=environment)


def _why_not(options: argparse.Namespace, output: str) -> str:
    """Return why Ray has not started, from what it printed."""
    text = " ".join(output.split())
    if "InvalidAuthToken" in text or "AuthenticationError" in text:
        return (
            f"the cluster at {options.address} does not take this machine's token. Copy {TOKEN} from its head to here"
        )
    if "already in use" in text or "already been started" in text or "already running" in text:
        return f"this machine is part of a cluster already, or port {options.port} is in use. shoal stop takes it out"
    if "ersion mismatch" in text:
        return f"the head has other versions than this machine: {text[-500:]}"
    return f"Ray did not start: {text[-800:]}"
