"""From a tuner's ``fit()`` to the end of the search."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from shoal._core import events as on
from shoal._core import jsonl, search
from shoal._core.contracts import Engine
from shoal._core.errors import StorageError
from shoal._core.experiment import Experiment
from shoal._core.job import Job
from shoal._core.trials import Trial
from shoal._runtime import directory
from shoal._runtime.channel import Channel
from shoal._runtime.interrupts import stop_on_signals
from shoal._runtime.journal import read_search
from shoal._runtime.preparation import this_driver
from shoal._runtime.rundir import RunFiles
from shoal._runtime.search_display import make_search_display
from shoal._runtime.search_driver import SearchDriver, SearchListener, SearchParts
from shoal._runtime.supervisor import Supervisor
from shoal._runtime.trial_runs import Source, TrialRuns
from shoal._worker.remote import Remote, content


@dataclass(frozen=True, kw_only=True)
class SearchJob:
    """One ``Tuner.fit()``, as asked.

    ``machine`` makes the experiment, given its identifier and its seed; ``job_of`` a job of a trial, and ``name_of``
    the name of its directory; ``room`` says how many trials an engine has room for at a time, where that is known.
    """

    name: str
    machine: Callable[[str, int], Experiment]
    job_of: Callable[[Trial], Job]
    name_of: Callable[[Trial], str]
    room: Callable[[Engine], int | None]
    storage_path: Any = None
    storage_filesystem: Any = None
    resume: bool | str = False
    resumption: search.Resumption = field(default_factory=search.Resumption)
    listener: SearchListener = field(default_factory=SearchListener)
    verbose: int = 1
    total: Callable[[], int | None] = lambda: None
    asked: dict[str, Any] = field(default_factory=dict)
    space: Any = None
    seed: int | None = None
    reuse: bool = False


@dataclass(frozen=True, kw_only=True)
class SearchOutcome:
    """How a search ended: its trials, and where each of them lies."""

    path: Path | Remote
    state: str
    reason: str
    machine: Experiment
    directories: dict[str, str]
    errors: dict[str, BaseException]


class Leaving:
    """Sees whether a search is to go on in another process."""

    def __init__(self, post: Callable[[on.Event], None]):
        self.noticed = False
        self._post = post

    def __call__(self, event: on.Event) -> None:
        self.noticed |= isinstance(event, on.PreemptionNotice)
        self._post(event)


def drive_search(job: SearchJob, engine: Engine) -> SearchOutcome:
    """Run a search on an engine and return how it ended.

    Raises
    ------
    RunExists, StorageError
        Before anything is started.
    KeyboardInterrupt
        When the person pressed Ctrl-C twice.
    """
    place = directory.place_of(job.storage_path, job.name, job.storage_filesystem)
    with directory.opened(place, job.name, job.resume, directory.EXPERIMENT) as home:
        records = read_search(home.work / "journal.jsonl")
        identity = _identity(home, job)
        machine = job.machine(identity["search_id"], identity["seed"])
        machine.table.total_resources = engine.total()
        machine.replay(records)
        with directory.storage_errors(place):
            files = RunFiles(home, {})
        if not home.resumed:
            files.describe({**job.asked, **identity}, job.space, directory.EXPERIMENT)
        channel = Channel(engine.listen_on)
        try:
            supervisor = Supervisor(identity["search_id"], channel)
            runs = TrialRuns(
                home,
                engine,
                supervisor,
                job_of=job.job_of,
                name_of=job.name_of,
                decided=machine.decides,
                reuse=job.reuse,
            )
            runs.known(read_names(home.work))
            for record in records:
                if isinstance(record, search.TrialCloned):
                    runs.look_at_adopted(machine.table[record.trial_id])
            for trial_id, adoption in machine.table.undelivered.items():
                source = Source(machine.table[adoption.source_id], adoption.n)
                runs.reserve_again(machine.table[trial_id], source)
            display = make_search_display(job.verbose)
            display.total = job.total()
            parts = SearchParts(
                name=job.name,
                machine=machine,
                runs=runs,
                files=files,
                display=display,
                driver=this_driver([]),
                resumption=job.resumption,
                room=partial(job.room, engine),
                listener=job.listener,
            )
            driver = SearchDriver(parts, supervisor, engine)
            leaving = Leaving(driver.post)
            with stop_on_signals(leaving, engine) as pressed_twice:
                end = driver.run()
        finally:
            channel.close()
        files.conclude({"state": end.state, "reason": end.reason})
    outcome = SearchOutcome(
        path=place,
        state=end.state,
        reason=end.reason,
        machine=machine,
        directories={trial.trial_id: runs.directory(trial) for trial in machine.table.get_trials()},
        errors=parts.errors,
    )
    if leaving.noticed and end.state == "STOPPED":
        engine.leave()
    if pressed_twice():
        raise KeyboardInterrupt(f"the search was ended at once; what there is of it is in {place}")
    return outcome


def _identity(home: directory.Home, job: SearchJob) -> dict[str, Any]:
    """Return the identifier and the seed of an experiment: those that it has, or new ones."""
    asked = home.work / directory.EXPERIMENT
    if asked.exists():
        known = jsonl.decode(asked.read_bytes())
        return {"search_id": known["search_id"], "seed": known["seed"]}
    seed = job.seed if job.seed is not None else secrets.randbelow(2**31)
    return {"search_id": secrets.token_hex(3), "seed": seed}


def read_names(work: Path) -> dict[str, str]:
    """Return the directories of trials, by the trials' identifiers."""
    names = {}
    for entry in os.scandir(work):
        if entry.is_dir() and (Path(entry.path) / directory.RUN).exists():
            trial_id = jsonl.decode((Path(entry.path) / directory.RUN).read_bytes()).get("trial_id")
            if trial_id and ".before-" not in entry.name:
                names[trial_id] = entry.name
    return names


def known_search(place: Path | Remote) -> dict[str, Any]:
    """Return what was asked of the experiment at a place.

    Raises
    ------
    StorageError
        If there is none.
    """
    if not directory.has_run(place, directory.EXPERIMENT):
        raise StorageError(f"there is no search at {place}: it has no {directory.EXPERIMENT}")
    file = place / directory.EXPERIMENT
    return dict(jsonl.decode(content(file)))
