"""``shoal doctor``: what of this machine works, what does not, and what to do."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Annotated, Any

import msgspec
import psutil
import typer
from rich.text import Text

from shoal import _plugins
from shoal._core.errors import ShoalError
from shoal._runtime.directory import default_storage_path
from shoal._version import __version__
from shoal._worker.remote import Remote, locate
from shoal.cli import screen
from shoal.cli.app import Json, Storage, command

FRAMEWORKS = {
    "torch": "torch", "transformers": "transformers", "accelerate": "transformers", "lightning": "lightning",
    "deepspeed": "deepspeed", "jax": "jax", "tensorflow": "tensorflow", "xgboost": "xgboost", "lightgbm": "lightgbm",
    "ray": "ray", "optuna": "optuna", "pyarrow": "data", "s3fs": "s3", "gcsfs": "gcs",
}  # fmt: skip
LITTLE_SHM = 1 << 30  # bytes: data loaders of torch exchange batches through /dev/shm
LITTLE_DISK = 1 << 30


class Finding(msgspec.Struct, kw_only=True):
    """What was found of one thing: ``level`` is ``ok``, ``note``, ``warning`` or ``broken``; ``advice`` what to do."""

    what: str
    level: str
    found: str
    advice: str = ""


MARKS = {"ok": ("ok", "green"), "note": ("-", "dim"), "warning": ("!", "yellow"), "broken": ("BROKEN", "red")}


@command("doctor")
def doctor(
    storage: Storage = None,
    quick: Annotated[bool, typer.Option("--quick", help="Do not start workers.")] = False,
    json: Json = False,
) -> int:
    """Look at Python, frameworks, accelerators and the network; try two workers and the storage."""
    checks: list[Callable[[], list[Finding]]] = [
        versions,
        frameworks,
        machine,
        accelerators,
        network,
        lambda: storage_test(storage),
    ]
    if not quick:
        checks.append(collective_test)
    found: list[Finding] = []
    for check in checks:
        found += check()
    if json:
        screen.print_json(found)
    else:
        rows = [(Text(*MARKS[f.level]), f.what, f.found + (f"\n→ {f.advice}" if f.advice else "")) for f in found]
        screen.console().print(screen.table("", "", "", rows=rows))
        broken = [finding.what for finding in found if finding.level == "broken"]
        print(f"does not work: {', '.join(broken)}" if broken else "everything that was tried works")
    return 1 if any(finding.level == "broken" for finding in found) else 0


def versions() -> list[Finding]:
    """Look at shoal, Python and the system."""
    system = f"{platform.system()} {platform.release()} {platform.machine()}"
    found = [
        Finding(what="shoal", level="ok", found=f"{__version__} in {os.path.dirname(os.path.dirname(__file__))}"),
        Finding(what="Python", level="ok", found=f"{platform.python_version()} in {sys.executable}, on {system}"),
    ]
    if platform.system() == "Windows":
        found.append(
            Finding(what="system", level="broken", found="Windows", advice="use WSL, the Linux inside Windows")
        )
    return found


def frameworks() -> list[Finding]:
    """Look at which frameworks are installed, without importing them."""
    there = installed()
    return [
        Finding(what=name, level="ok", found=there[name])
        if name in there
        else Finding(what=name, level="note", found=f'not installed: pip install "shoal[{extra}]"')
        for name, extra in FRAMEWORKS.items()
    ]


def installed() -> dict[str, str]:
    """Return the versions of shoal, Python, and of all that is installed of what shoal works with."""
    found = {"shoal": __version__, "Python": platform.python_version()}
    for name in FRAMEWORKS:
        if importlib.util.find_spec(name) is not None:
            try:
                found[name] = importlib.metadata.version(name)
            except importlib.metadata.PackageNotFoundError:  # under another name, such as tensorflow-cpu
                found[name] = "of an unknown version"
    return found


def machine() -> list[Finding]:
    """Look at processors, memory, and the place where processes share memory."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    memory = psutil.virtual_memory()
    text = f"{usable} CPUs, {screen.size(memory.available)} of {screen.size(memory.total)} memory free"
    found = [Finding(what="machine", level="ok", found=text)]
    if os.path.isdir("/dev/shm"):
        shm = shutil.disk_usage("/dev/shm")
        little = shm.free < LITTLE_SHM
        found.append(
            Finding(
                what="/dev/shm",
                level="warning" if little else "ok",
                found=f"{screen.size(shm.free)} of {screen.size(shm.total)} free",
                advice="data loaders with many workers need more: in Docker, --shm-size=8g" if little else "",
            )
        )
    return found


def accelerators() -> list[Finding]:
    """Look at what the local engine would give out."""
    engine = _plugins.load("engine", "local")({})
    try:
        total = dict(engine.total())
    finally:
        engine.shutdown()
    others = {key: amount for key, amount in total.items() if key not in {"CPU", "memory"} and amount}
    if others:
        told = ", ".join(f"{amount:g} {key}" for key, amount in others.items())
        return [Finding(what="accelerators", level="ok", found=told)]
    if shutil.which("nvidia-smi"):
        advice = "nvidia-smi is here, but the driver's library does not answer: look at what nvidia-smi says"
        return [Finding(what="accelerators", level="warning", found="none found", advice=advice)]
    return [Finding(what="accelerators", level="note", found="none: use_gpu=True cannot be met on this machine")]


def network() -> list[Finding]:
    """Look at this machine's names and addresses."""
    found = []
    for name, addresses in psutil.net_if_addrs().items():
        told = [
            a.address
            for a in addresses
            if a.family in {socket.AF_INET, socket.AF_INET6} and not a.address.startswith("fe80")
        ]
        stats = psutil.net_if_stats().get(name)
        if told and stats is not None and stats.isup:
            speed = f", {stats.speed} Mbit/s" if stats.speed else ""
            found.append(Finding(what=f"network {name}", level="ok", found=", ".join(told) + speed))
    host = socket.gethostname()
    try:
        address = socket.gethostbyname(host)
        found.append(Finding(what="host name", level="ok", found=f"{host} is {address}"))
    except OSError:
        advice = f"collectives that look their own host up fail: add '127.0.0.1 {host}' to /etc/hosts"
        found.append(Finding(what="host name", level="warning", found=f"{host} has no address", advice=advice))
    return found


def storage_test(storage: str | None) -> list[Finding]:
    """Write where runs are kept, read it back, and remove it."""
    place = storage or default_storage_path()
    began = time.perf_counter()
    try:
        root = locate(place)
        if isinstance(root, Remote):
            _round_trip_remote(Remote(root.filesystem, root.path, patience=20.0))
            more = ""
        else:
            root.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=".doctor-", dir=root) as scratch:
                _round_trip(scratch)
            free = shutil.disk_usage(root).free
            if free < LITTLE_DISK:
                return [
                    Finding(
                        what="storage",
                        level="warning",
                        found=f"{place}: {screen.size(free)} free",
                        advice="shoal clean --keep 5 makes room",
                    )
                ]
            more = f", {screen.size(free)} free"
    except (OSError, ShoalError, ImportError, ValueError) as error:
        advice = "choose another place: --storage, $SHOAL_STORAGE_PATH, or RunConfig(storage_path=...)"
        return [Finding(what="storage", level="broken", found=f"{place}: {error}", advice=advice)]
    took = time.perf_counter() - began
    return [
        Finding(what="storage", level="ok", found=f"{place}: written, read and removed in {took * 1000:.0f} ms{more}")
    ]


def _round_trip(directory: str) -> None:
    path, content = os.path.join(directory, "part"), os.urandom(1 << 20)
    with open(path, "wb") as file:
        file.write(content)
    os.rename(path, path + "-whole")
    with open(path + "-whole", "rb") as file:
        if file.read() != content:
            raise OSError("what was read is not what was written")


def _round_trip_remote(root: Remote) -> None:
    file, content = root / f".doctor-{os.getpid()}", os.urandom(1 << 20)
    file.write(content)
    try:
        if file.read() != content:
            raise OSError("what was read is not what was written")
    finally:
        file.delete()


def collective_test() -> list[Finding]:
    """Train for a moment with two workers, who sum up their ranks."""
    from shoal.train import RunConfig, ScalingConfig

    torch = importlib.util.find_spec("torch") is not None
    trainer: Any
    if torch:
        from shoal.train.torch import TorchTrainer as trainer
    else:
        from shoal.train import DataParallelTrainer as trainer
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="shoal-doctor-") as scratch:
        try:
            result = trainer(
                _sum_with_torch if torch else _sum_plain,
                scaling_config=ScalingConfig(num_workers=2),
                run_config=RunConfig(storage_path=scratch, name="doctor", verbose=0, log_to_driver=None),
            ).fit()
            right = result.metrics.get("sum") == 3
            error = "" if right else f"the ranks summed up to {result.metrics.get('sum')} instead of 3"
        except Exception as failure:  # whatever it is, it is what this command is asked for
            error = str(failure).strip() or type(failure).__name__
    took = time.perf_counter() - began
    how = "torch.distributed" if torch else "shoal's own collective"
    if error:
        advice = "if the workers cannot reach each other, look at firewalls and at GLOO_SOCKET_IFNAME"
        return [Finding(what="two workers", level="broken", found=error, advice=advice)]
    return [Finding(what="two workers", level="ok", found=f"started, summed up over {how}, and ended in {took:.1f} s")]


def _sum_with_torch() -> None:
    import torch

    from shoal import train

    value = torch.tensor([train.get_context().get_world_rank() + 1.0])
    torch.distributed.all_reduce(value)
    train.report({"sum": value.item()})


def _sum_plain() -> None:
    from shoal import train

    ranks = train.collective.all_gather(train.get_context().get_world_rank() + 1)
    train.report({"sum": sum(ranks)})
