"""``shoal run`` and ``resume``: scripts, with what their configurations have left open."""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from shoal._core.errors import ShoalError
from shoal._runtime import catalog
from shoal._runtime.command import OVERRIDES
from shoal._worker.remote import Remote
from shoal.cli.app import command
from shoal.cli.jobs import PASSED_ON


@command("run", context_settings={**PASSED_ON, "allow_interspersed_args": True})
def run(
    context: typer.Context,
    script: Annotated[
        Path, typer.Argument(help="A Python script. Options that are none of these, and all after --, are its own.")
    ],
    workers: Annotated[str | None, typer.Option("--workers", "-w", help="How many, or a range such as 2-8.")] = None,
    gpus: Annotated[int | None, typer.Option(help="GPUs of each worker.")] = None,
    cpus: Annotated[float | None, typer.Option(help="CPUs of each worker.")] = None,
    name: Annotated[str | None, typer.Option(help="The run's name.")] = None,
    storage: Annotated[str | None, typer.Option(help="Where it is kept: a directory or a URL.")] = None,
    resume: Annotated[
        str | None, typer.Option(help="'auto' goes on with the run of this name if there is one.")
    ] = None,
    max_failures: Annotated[
        int | None, typer.Option(help="How often the group is started again; -1 without end.")
    ] = None,
    engine: Annotated[str | None, typer.Option(help="local, ray, slurm or inline.")] = None,
    as_ray: Annotated[
        bool, typer.Option("--as-ray", help="The script is written for Ray: its imports of ray get shoal.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show only what workers print.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print what would be done.")] = False,
) -> int:
    """Run a training script; the options fill in what its ScalingConfig and RunConfig leave open."""
    if not script.is_file():
        raise ShoalError(f"there is no script {str(script)!r} in {os.getcwd()}")
    if resume not in {None, "auto"}:
        raise ShoalError(f"--resume {resume}: the choice is 'auto'; shoal resume RUN goes on with a run that is there")
    asked: dict[str, Any] = {
        "num_workers": _workers(workers),
        "GPU": gpus,
        "CPU": cpus,
        "name": name,
        "storage_path": _absolute(storage),
        "resume": resume,
        "max_failures": max_failures,
        "verbose": 0 if quiet else None,
        "engine": engine,
    }
    through = ["-m", "shoal.as_ray"] if as_ray else []
    return _become([sys.executable, *through, str(script), *context.args], asked, dry_run)


def _workers(text: str | None) -> int | list[int] | None:
    if text is None:
        return None
    try:
        numbers = [int(part) for part in text.split("-")]
    except ValueError:
        numbers = []
    if len(numbers) not in {1, 2} or min(numbers) < 0:
        raise ShoalError(f"--workers {text}: give a number such as 4, or a range such as 2-8")
    return numbers[0] if len(numbers) == 1 else numbers


def _absolute(storage: str | None) -> str | None:
    return storage if storage is None or "://" in storage else os.path.abspath(os.path.expanduser(storage))


def _become(program: list[str], asked: dict[str, Any], dry_run: bool) -> int:
    """Become the program: its output, its signals and its exit code are its own."""
    wanted = {key: value for key, value in asked.items() if value is not None}
    added = {OVERRIDES: json.dumps(wanted)} if wanted else {}
    if "engine" in wanted:
        added["SHOAL_ENGINE"] = wanted["engine"]
    if dry_run:
        print(" ".join([*(f"{key}={shlex.quote(value)}" for key, value in added.items()), shlex.join(program)]))
        return 0
    sys.stdout.flush()
    os.execve(program[0], program, {**os.environ, **added})
    return 1  # which is never reached: a type checker knows that, a linter does not


@command("resume")
def resume(
    name: Annotated[str, typer.Argument(metavar="RUN")],
    storage: Annotated[str | None, typer.Option(help="Where runs are kept.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print what would be done.")] = False,
) -> int:
    """Go on with a run that died, failed or was stopped, by starting its script once more."""
    place = catalog.find(name, storage)
    one = catalog.overview(place, sized=False)
    if one.kind == "trial":
        raise ShoalError(f"{name} is a trial: go on with its search, shoal resume {place.parent.name}")
    if one.live:
        raise ShoalError(f"{name} is running: process {one.driver['pid']} on {one.driver['host']} drives it")  # type: ignore[index]
    if one.state == "FINISHED":
        raise ShoalError(f"{name} has finished: there is nothing to go on with")
    command = one.asked.get("command")
    if not command:
        how = "tune.Tuner.restore" if one.kind == "search" else "TorchTrainer.restore"
        raise ShoalError(
            f"{name} was started in a notebook or at a prompt and not by a script, so not from here: "
            f"{how}({one.path!r}, function).fit() goes on with it"
        )
    if not os.path.isdir(command["directory"]):
        raise ShoalError(f"the directory {command['directory']} in which {name} was started is not there any more")
    os.chdir(command["directory"])
    parent = str(place.parent)
    asked = {
        **command.get("overrides", {}),
        "name": place.name,
        "resume": "auto",
        "storage_path": parent if isinstance(place, Remote) else os.path.abspath(parent),
    }
    python = command["python"] if os.access(command["python"], os.X_OK) else sys.executable
    return _become([python, *command["arguments"]], asked, dry_run)
