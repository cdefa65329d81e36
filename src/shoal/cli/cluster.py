"""``shoal start``, ``status`` and ``stop`` without a run: a Ray cluster by hand, over Ray's own commands."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from shoal._core.errors import ShoalError
from shoal._runtime.addresses import own_address
from shoal._runtime.requirements import require
from shoal.cli.app import CLUSTERS, Json, command
from shoal.cli.screen import print_json

TOKEN = Path("~/.ray/auth_token")


@command("start", CLUSTERS)
def start(
    head: Annotated[bool, typer.Option("--head", help="Begin a cluster, with this machine as its head.")] = False,
    address: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Join the cluster whose head is there.")
    ] = None,
    port: Annotated[int, typer.Option(help="Where the head listens.")] = 6379,
    node_ip_address: Annotated[str | None, typer.Option(help="This machine's address, if it has several.")] = None,
    num_cpus: Annotated[int | None, typer.Option(help="How many CPUs to give out. [default: all]")] = None,
    num_gpus: Annotated[int | None, typer.Option(help="How many GPUs to give out. [default: all]")] = None,
    resources: Annotated[str | None, typer.Option(metavar="JSON", help="Custom resources: '{\"license\": 2}'.")] = None,
    labels: Annotated[
        str | None, typer.Option(metavar="A=B,C=D", help="For ScalingConfig(label_selector=...).")
    ] = None,
    dashboard_host: Annotated[str, typer.Option(help="Where Ray's dashboard and jobs listen.")] = "127.0.0.1",
    block: Annotated[bool, typer.Option("--block", help="Stay in the foreground, for containers.")] = False,
) -> int:
    """Begin a cluster on this machine, or join one. Whoever joins or submits needs the token that the head has."""
    if head == (address is not None):
        raise ShoalError("give either --head, to begin a cluster, or --address HOST:PORT, to join one")
    require("ray", extra="ray", tested="2.60", trainer="shoal start")
    own = node_ip_address or own_address([address.rpartition(":")[0]] if address else [])
    arguments = [f"--node-ip-address={own}"]
    if address is None:
        _make_token()
        arguments += ["--head", f"--port={port}", f"--dashboard-host={dashboard_host}"]
        # Ray 2.60 tells the server for ray:// this port before it is chosen, and that server then waits in vain.
        arguments += [f"--runtime-env-agent-port={_free_port(own)}"]
    else:
        from shoal.engines.ray import check_answers

        check_answers(address)
        arguments += [f"--address={address}"]
    given = {"num-cpus": num_cpus, "num-gpus": num_gpus, "resources": resources, "labels": labels}
    arguments += [f"--{name}={value}" for name, value in given.items() if value is not None]
    if block:
        return _ray("start", *arguments, "--block").returncode
    done = _ray("start", *arguments, quiet=True)
    if done.returncode:
        raise ShoalError(_why_not(address, port, done.stdout + done.stderr))
    if address is None:
        print(f"The head runs at {own}:{port}. On each other machine:")
        print(f"  copy {TOKEN} from here, then: shoal start --address={own}:{port}")
        print(f"Scripts on these machines begin with shoal.init('auto'); from elsewhere: shoal submit --address {own}")
    else:
        print(f"{own} is part of the cluster at {address}.")
    print("shoal status shows the cluster; shoal stop takes this machine out of it.")
    return 0


@command("status", CLUSTERS)
def status(
    address: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Its head. [default: this machine's cluster]")
    ] = "auto",
    json: Json = False,
) -> None:
    """Show the machines of a cluster, what of them is used, and the runs in progress."""
    from shoal.engines.ray import RayEngine

    engine = RayEngine(address)
    try:
        if json:
            print_json([{"name": n.name, "total": n.total, "taken": n.taken} for n in engine.nodes()])
        else:
            print("\n".join(described(engine)))
    finally:
        engine.shutdown()


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


def leave(force: bool) -> int:
    """End what `shoal start` has started on this machine, and the workers on it."""
    require("ray", extra="ray", tested="2.60", trainer="shoal stop")
    done = _ray("stop", *(["--force"] if force else []), quiet=True)
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
    """Run a command of Ray's, its token authentication on.

    With gRPC's fork handlers on, one in a few hundred of the servers that a head forks for its clients (``ray://``)
    aborts before it is one: https://github.com/grpc/grpc/issues/43055.
    """
    environment = {
        "RAY_AUTH_MODE": "token",
        "RAY_USAGE_STATS_ENABLED": "0",
        "GRPC_ENABLE_FORK_SUPPORT": "0",
        **os.environ,
    }
    command = [sys.executable, "-m", "ray.scripts.scripts", *arguments]
    return subprocess.run(command, capture_output=quiet, text=True, check=False, env=environment)


def _why_not(address: str | None, port: int, output: str) -> str:
    """Return why Ray has not started, from what it printed."""
    text = " ".join(output.split())
    if "InvalidAuthToken" in text or "AuthenticationError" in text:
        return f"the cluster at {address} does not take this machine's token. Copy {TOKEN} from its head to here"
    if "already in use" in text or "already been started" in text or "already running" in text:
        return f"this machine is part of a cluster already, or port {port} is in use. shoal stop takes it out"
    if "ersion mismatch" in text:
        return f"the head has other versions than this machine: {text[-500:]}"
    return f"Ray did not start: {text[-800:]}"
