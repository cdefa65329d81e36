"""``shoal checkpoints`` and ``clean``: what is kept, whether it is sound, and what may go."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Annotated

import typer

from shoal._core.errors import ShoalError
from shoal._core.overview import CheckpointView, Overview
from shoal._runtime import catalog
from shoal._runtime.lease import LocalLease
from shoal._worker.remote import Remote, within
from shoal.cli import screen
from shoal.cli.app import Json, Storage, command


@command("checkpoints")
def checkpoints(
    name: Annotated[str, typer.Argument(metavar="RUN")],
    action: Annotated[str, typer.Argument(metavar="[list|verify|export]", help="What to do with them.")] = "list",
    which: Annotated[
        str | None,
        typer.Argument(metavar="[CHECKPOINT]", help="A name, 'best' or 'newest'. [default: all; export: the newest]"),
    ] = None,
    to: Annotated[
        Path | None, typer.Option(help="export: the directory to copy it into, which must not exist.")
    ] = None,
    storage: Storage = None,
    json: Json = False,
) -> int:
    """List a run's checkpoints, read every byte of them to verify it, or export one."""
    place = catalog.find(name, storage)
    one = catalog.overview(place, sized=False)
    if one.kind == "search":
        raise ShoalError(f"{name} is a search, whose trials have the checkpoints: shoal checkpoints {name}/<trial>")
    if action not in {"list", "verify", "export"}:
        raise ShoalError(f"there is no action {action!r}: choose list, verify or export")
    chosen = _chosen(one, which)
    if action == "verify":
        return _verify(place, chosen, json)
    if action == "export":
        return _export(place, chosen[-1] if chosen else None, to, name)
    if json:
        screen.print_json(chosen)
        return 0
    if not chosen:
        print(f"{name} has no checkpoints")
        return 0
    rows = [
        (
            c.name,
            c.n,
            c.status.lower().replace("_", " "),
            "best" if c.best else "",
            screen.size(catalog.size_of(_of(place, c))),
            screen.told(c.metrics),
        )
        for c in chosen
    ]
    screen.console().print(screen.table("name", ">report", "status", "", ">size", "metrics", rows=rows))
    return 0


def _of(place: catalog.Place, checkpoint: CheckpointView) -> catalog.Place:
    return within(place / "checkpoints", checkpoint.name)


def _chosen(one: Overview, which: str | None) -> list[CheckpointView]:
    if which is None:
        return one.checkpoints
    if which == "newest":
        return one.checkpoints[-1:]
    if which == "best":
        if one.metric is None:
            raise ShoalError(
                f"{one.name} does not say what makes a checkpoint the best: it has no "
                "CheckpointConfig(checkpoint_score_attribute=...). Give a name, or 'newest'"
            )
        return [checkpoint for checkpoint in one.checkpoints if checkpoint.best]
    found = [checkpoint for checkpoint in one.checkpoints if which in {checkpoint.name, str(checkpoint.n)}]
    if not found:
        there = ", ".join(checkpoint.name for checkpoint in one.checkpoints) or "none"
        raise ShoalError(f"{one.name} has no checkpoint {which!r}; it has: {there}")
    return found


def _verify(place: catalog.Place, chosen: list[CheckpointView], json: bool) -> int:
    from shoal.train.checkpoint import checkpoint_at

    told = []
    for checkpoint in chosen:
        try:
            checkpoint_at(_of(place, checkpoint)).verify()
            told.append({"name": checkpoint.name, "sound": True, "reason": ""})
        except (ShoalError, OSError, ValueError) as error:
            told.append({"name": checkpoint.name, "sound": False, "reason": str(error)})
    if json:
        screen.print_json(told)
    else:
        for one in told:
            print(
                f"{one['name']}: " + ("every byte is as it was stored" if one["sound"] else f"DAMAGED: {one['reason']}")
            )
        if not told:
            print("there are no checkpoints to verify")
    return 0 if all(one["sound"] for one in told) else 1


def _export(place: catalog.Place, checkpoint: CheckpointView | None, to: Path | None, name: str) -> int:
    if checkpoint is None:
        raise ShoalError(f"{name} has no checkpoints to export")
    if to is None:
        raise ShoalError("where to? Give --to DIRECTORY")
    if to.exists():
        raise ShoalError(f"{to} is there already: give a directory that does not exist")
    from shoal.train.checkpoint import checkpoint_at

    with checkpoint_at(_of(place, checkpoint)).as_directory() as directory:
        shutil.copytree(directory, to, ignore=shutil.ignore_patterns(".manifest.json"))
    print(f"{checkpoint.name} of {name} is in {to}")
    return 0


@command("clean")
def clean(
    names: Annotated[list[str] | None, typer.Argument(metavar="[RUN]...", help="Which.")] = None,
    states: Annotated[
        list[str] | None, typer.Option("--state", help="All in this state, such as FAILED; may be repeated.")
    ] = None,
    older: Annotated[str | None, typer.Option("--older-than", help="All that began before, such as 7d or 12h.")] = None,
    keep: Annotated[int | None, typer.Option(help="All but the newest so many.")] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be removed.")] = False,
    storage: Storage = None,
    json: Json = False,
) -> int:
    """Remove runs with all that is in them, after showing their sizes and asking. What is running is never removed."""
    chosen = _to_remove(names or [], states or [], older, keep, storage)
    going = [one for one in chosen if not one.live]
    if json:
        screen.print_json([{"name": one.name, "path": one.path, "state": one.state, "size": one.size} for one in going])
    else:
        _show_going(going, [one.name for one in chosen if one.live])
    if dry_run or not going:
        return 0
    if not yes and not typer.confirm(f"Remove {len(going)} for good?"):
        return 1
    for one in going:
        remove(catalog.find(one.path))
    if not json:
        print(f"removed: {screen.size(sum(one.size for one in going))}")
    return 0


def _to_remove(
    names: list[str], states: list[str], older: str | None, keep: int | None, storage: str | None
) -> list[Overview]:
    if names:
        return [catalog.overview(catalog.find(name, storage)) for name in names]
    if not states and older is None and keep is None:
        raise ShoalError("which? Name runs, or give --state FAILED, --older-than 7d, or --keep 5")
    found = catalog.listed(storage)
    if keep is not None:
        found = found[max(0, keep) :]
    if states:
        found = [one for one in found if one.state in {state.upper() for state in states}]
    if older is not None:
        try:
            before = time.time() - screen.seconds_of(older)
        except ValueError as error:
            raise ShoalError(f"--older-than: {error}") from error
        found = [one for one in found if one.started_at < before]
    return found


def _show_going(going: list[Overview], running: list[str]) -> None:
    if running:
        print(f"running, and left as they are: {', '.join(running)}")
    if not going:
        print("there is nothing to remove")
        return
    rows = [
        (one.name, one.kind, screen.state(one), screen.age(time.time() - one.started_at), screen.size(one.size))
        for one in going
    ]
    screen.console().print(screen.table("name", "kind", "state", ">age", ">size", rows=rows))
    print(f"together: {screen.size(sum(one.size for one in going))}")


def remove(place: catalog.Place) -> None:
    """Remove a run, under its lease: nobody goes on with it meanwhile."""
    if isinstance(place, Remote):
        place.delete()
        return
    if catalog.kind_of(place) != "trial":
        LocalLease(place)
    shutil.rmtree(place)
