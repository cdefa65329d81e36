"""``shoal stop`` and ``stacks``: what is asked of the driver of a run that goes on."""

from __future__ import annotations

import re
import time
from typing import Annotated

import typer

from shoal._core.errors import ShoalError, StorageError
from shoal._runtime import attendance, catalog
from shoal._worker.remote import content, names_in
from shoal.cli import cluster, jobs, screen
from shoal.cli.app import Json, Storage, command

LOOK = 0.2  # seconds between two looks at whether what was asked has been done
STACKS_SECONDS = 15.0  # for the answers: py-spy reads the symbols of torch for seconds


@command("stop")
def stop(
    name: Annotated[
        str | None, typer.Argument(metavar="[RUN]", help="A run, a search, or a job of shoal submit.")
    ] = None,
    kill: Annotated[bool, typer.Option("--kill", help="At once, and not at the next report.")] = False,
    wait: Annotated[bool, typer.Option(help="Wait for its end.")] = True,
    timeout: Annotated[float, typer.Option(help="For so many seconds at most.")] = 600.0,
    force: Annotated[bool, typer.Option("--force", help="Without RUN: do not wait for what runs here.")] = False,
    address: Annotated[str | None, typer.Option(help="Of a Ray cluster, for a job there.")] = None,
    storage: Storage = None,
) -> int:
    """Stop a run at its next report, and keep what it has committed; without RUN, leave this machine's cluster."""
    if name is None:
        return cluster.leave(force)
    try:
        place = catalog.find(name, storage)
    except StorageError:
        if not jobs.is_job(name, address):
            raise
        return jobs.stop_job(name, address)
    holder = _driver(place, name)
    attendance.ask(place, "kill" if kill else "stop", str(holder.get("token", "")))
    if not wait:
        print(f"{name} is asked to stop")
        return 0
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if catalog.driver_of(place) is None:
            state = catalog.overview(place, sized=False).state
            print(
                f"{name} has ended: {state}" + ("" if state == "FINISHED" else f". shoal resume {name} goes on with it")
            )
            return 0
        time.sleep(LOOK)
    raise ShoalError(
        f"{name} was asked to stop and has not ended in {timeout:g} s: it makes no report. shoal stacks {name} shows "
        f"what it does, shoal stop --kill {name} ends it at once"
    )


def _driver(place: catalog.Place, name: str) -> dict[str, object]:
    """Return who drives a run; raise an error where nobody does, or where a trial is meant."""
    if catalog.kind_of(place) == "trial":
        raise ShoalError(f"{name} is a trial: what is asked of a search, is asked of all of it: {place.parent.name}")
    holder = catalog.driver_of(place)
    if holder is None:
        raise ShoalError(f"{name} is not running: its state is {catalog.overview(place, sized=False).state}")
    return holder


@command("stacks")
def stacks(
    name: Annotated[str, typer.Argument(metavar="RUN", help="A run or a search that goes on.")],
    rank: Annotated[int | None, typer.Option(help="Only of this rank.")] = None,
    storage: Storage = None,
    json: Json = False,
) -> int:
    """Show what every rank is doing right now: its Python stacks, and the native ones where py-spy is installed."""
    place = catalog.find(name, storage)
    holder = _driver(place, name)
    before = dict(_answers(place, _there(place)))
    at = time.time()
    attendance.ask(place, "stacks", str(holder.get("token", "")))
    wanted, answers = _wait(place, at, rank, before)
    if json:
        screen.print_json(
            [{"trial": trial, "rank": number, "stacks": text} for (trial, number), text in answers.items()]
        )
        return 0
    for (trial, number), text in sorted(answers.items()):
        print(f"---- {trial + ' ' if trial else ''}rank {number} ----\n{text.rstrip()}\n")
    for trial, number in sorted(wanted - answers.keys()):
        print(f"---- {trial + ' ' if trial else ''}rank {number} ---- no answer within {STACKS_SECONDS:g} s")
    if not wanted:
        print(f"{name} has no workers" + (f" of rank {rank}" if rank is not None else "") + " now")
    return 0 if wanted and wanted <= answers.keys() else 1


Who = tuple[str, int]  # a trial's directory, if it is of a search, and a rank
Answers = dict[Who, str]


def _wait(place: catalog.Place, at: float, rank: int | None, before: Answers) -> tuple[set[Who], Answers]:
    """Return who is to answer, and the answers that are new, once they are all there and do not grow any more."""
    deadline = time.monotonic() + STACKS_SECONDS
    wanted: set[Who] = set()
    answers: Answers = {}
    settled = 0
    while time.monotonic() < deadline and settled < 5:
        time.sleep(LOOK)
        if catalog.status_of(place).get("at", 0.0) >= at:  # the driver has seen the question
            wanted = {who for who in _there(place) if rank in (None, who[1])}
        now = {who: text for who, text in _answers(place, wanted).items() if text != before.get(who)}
        settled = settled + 1 if now == answers and wanted and wanted <= now.keys() else 0
        answers = now
    return wanted, answers


def _there(place: catalog.Place) -> set[Who]:
    """Return the workers that can be asked."""
    workers = catalog.status_of(place).get("workers", [])
    return {(w.get("trial", ""), w["rank"]) for w in workers if w["phase"] not in {"gone", "finished", "starting"}}


def _answers(place: catalog.Place, wanted: set[Who]) -> Answers:
    found: Answers = {}
    for trial, rank in wanted:
        folder = (place / trial if trial else place) / "stacks"
        attempts = {
            int(match[1]): name
            for name in names_in(folder)
            if (match := re.fullmatch(rf"attempt_(\d+)_rank_{rank}\.txt", name))
        }
        if attempts:
            found[trial, rank] = content(folder / attempts[max(attempts)]).decode()
    return found
