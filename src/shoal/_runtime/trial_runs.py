"""The runs of an experiment's trials: begun and gone on with in its directory, from checkpoints of each other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from shoal._core.commands import Finish
from shoal._core.contracts import Engine
from shoal._core.job import Job
from shoal._core.names import stored_elsewhere
from shoal._core.plain_data import printable
from shoal._core.records import CheckpointCommitted, CheckpointDeleted, fold
from shoal._core.retention import CommittedCheckpoint
from shoal._core.run import Run
from shoal._core.trials import Trial
from shoal._runtime.directory import Home, reached_by_workers, trial_home
from shoal._runtime.display import Display
from shoal._runtime.journal import read_history, read_journal
from shoal._runtime.pickling import PickledTask, pickled_config, pickled_task
from shoal._runtime.pins import PinnedStorage, Pins, pin_of
from shoal._runtime.preparation import spec_of, task_of, this_driver
from shoal._runtime.resume import Earlier, effective_rows, read_earlier
from shoal._runtime.run_driver import Observer, Parts, RunDriver
from shoal._runtime.rundir import RunFiles
from shoal._runtime.seats import SeatedWorkers
from shoal._runtime.supervisor import Supervisor
from shoal._runtime.workers import Workers


class Source(NamedTuple):
    """What a trial goes on from: the checkpoint that another one made with its ``n``-th report."""

    trial: Trial
    n: int


class Reservation(NamedTuple):
    """What is kept for a trial that waits to go on from it, also after its owner has let go of it."""

    source_id: str
    checkpoint: CommittedCheckpoint


class TrialRuns:
    """Makes the drivers of trials.

    Parameters
    ----------
    home : Home
        The experiment's directory.
    engine, supervisor
        Where trials run, and whose loop drives them.
    job_of : callable
        Makes a job of a trial's configuration; the function and all that is not configuration is the same for all.
    name_of : callable
        Names the directory of a trial.
    decided : bool
        Whether every report waits for a decision.
    reuse : bool
        Whether one process runs trial after trial.
    """

    def __init__(
        self,
        home: Home,
        engine: Engine,
        supervisor: Supervisor,
        *,
        job_of: Callable[[Trial], Job],
        name_of: Callable[[Trial], str],
        decided: bool,
        reuse: bool = False,
    ):
        self._home, self._engine, self._supervisor = home, engine, supervisor
        self._job_of, self._name_of, self._decided = job_of, name_of, decided
        self._reuse = reuse
        self._pins = Pins()
        self._reserved: dict[str, Reservation] = {}
        self._names: dict[str, str] = {}
        self._task: PickledTask | None = None

    def directory(self, trial: Trial) -> str:
        """Return the name of a trial's directory, which stays what it was when the trial was made."""
        if trial.trial_id not in self._names:
            self._names[trial.trial_id] = self._name_of(trial)
        return self._names[trial.trial_id]

    def known(self, names: dict[str, str]) -> None:
        """Take the names that an earlier driver has given."""
        self._names.update(names)

    def look_at_adopted(self, trial: Trial) -> None:
        """Keep what a trial of an earlier driver goes on from."""
        name = self.directory(trial)
        home = trial_home(self._home, name)  # on storage elsewhere its records are fetched with it
        self._pins.look(name, read_history(home.work / "journal.jsonl"))

    def reserve(self, trial: Trial, source: Source) -> None:
        """Keep what a trial is to go on from, until it does."""
        self._reserve(trial, source, self._chosen(trial, source))

    def reserve_again(self, trial: Trial, source: Source) -> None:
        """Keep what an earlier driver has kept for a trial, although its owner may have let go of it since."""
        name = self.directory(source.trial)
        home = trial_home(self._home, name)
        there, ever = _checkpoints(home.work)
        names = {c.name for c in there}
        for checkpoint in sorted((c for c in ever if c.n <= source.n), key=lambda c: c.n, reverse=True):
            if checkpoint.name in names or not home.checkpoints.inspect(checkpoint, full=False):
                return self._reserve(trial, source, checkpoint)
        return self.reserve(trial, source)

    def _reserve(self, trial: Trial, source: Source, checkpoint: CommittedCheckpoint | None) -> None:
        if checkpoint is not None and source.trial is not trial:
            self._reserved[trial.trial_id] = Reservation(source.trial.trial_id, checkpoint)
            self._pins.reserve(self.directory(trial), pin_of(self.directory(source.trial), checkpoint))

    def release(self, trial: Trial) -> None:
        """A trial has gone on, or has ended: what it was to go on from need not be kept for it."""
        self._reserved.pop(trial.trial_id, None)
        self._pins.release(self.directory(trial))

    def _chosen(self, trial: Trial, source: Source) -> CommittedCheckpoint | None:
        """Return the checkpoint of a report, or the last one before, or the newest."""
        known = read_history(self._home.work / self.directory(source.trial) / "journal.jsonl").checkpoints
        reserved = self._reserved.get(trial.trial_id)
        if reserved is not None and reserved.source_id == source.trial.trial_id:
            known = [*known, reserved.checkpoint]
        not_later = [c for c in known if c.n <= source.n]
        return max(not_later or known, key=lambda c: c.n, default=None)

    def prepare(
        self, trial: Trial, *, anew: bool, source: Source | None, display: Display, observer: Observer
    ) -> RunDriver:
        """Make the driver of a trial. ``source`` is whose checkpoint it goes on from, if not from its own."""
        name = self.directory(trial)
        home = trial_home(self._home, name, anew=anew)
        trial.local_path = str(home.work)
        home = replace(home, checkpoints=PinnedStorage(home.checkpoints, name, self._pins, home.checkpoints.renames))
        job = self._job_of(trial)
        job = replace(job, name=name, asked={**job.asked, "trial_id": trial.trial_id})
        files = RunFiles(home, job.metadata)
        if not home.resumed or source is not None:
            files.describe(job.asked, printable(job.config))
        if home.resumed and source is not None:
            self._adopt(trial, files, source, display)
        earlier = read_earlier(home.work) if home.resumed else Earlier()
        self._pins.look(name, earlier.history)
        self.release(trial)
        parts = Parts(
            job=job,
            run_id=trial.trial_id,
            engine=self._engine,
            files=files,
            display=display,
            driver=this_driver([]),
            make_workers=partial(self.make_workers, job),
            observer=observer,
        )
        return RunDriver(Run(spec_of(job, home), earlier.history, earlier.last_row), parts, self._supervisor)

    def make_workers(self, job: Job, driver: RunDriver) -> Workers:
        """Return what starts the workers of a trial."""
        if self._task is None:  # the function is the same for all
            self._task = pickled_task(task_of(replace(job, config={}), reached_by_workers(self._home.kept)))
        common: dict[str, Any] = {
            "job": job,
            "task": self._task,
            "engine": self._engine,
            "files": driver.files,
            "send": self._supervisor.send,
            "post": driver.post,
            "decided": self._decided,
            "config": pickled_config(job.config),
            "folder": job.name,
        }
        if not self._reuse:
            return Workers(driver.run_id, **common)
        return SeatedWorkers(
            driver.run_id,
            seats=self._supervisor.seats,
            soon=self._supervisor.enqueue,
            hear=driver.handle,
            group=lambda: driver.machine.group,
            **common,
        )

    def missed(self, trial: Trial) -> list[dict[str, Any]]:
        """Return the reports that a trial goes on after, and that its experiment has not seen."""
        work = self._home.work / self.directory(trial)
        newest = max((c.n for c in read_history(work / "journal.jsonl").checkpoints), default=0)
        if newest <= trial.reports:
            return []
        return [row for row in effective_rows(work) if trial.reports < row["training_iteration"] <= newest]

    def conclude(self, trial: Trial, driver: RunDriver) -> Finish:
        """Write down how a trial's run ended, and let go of it."""
        assert driver.outcome is not None
        end = driver.outcome
        driver.close()
        self._pins.look(self.directory(trial), driver.machine.history)
        driver.files.conclude({"state": end.state.value, "reason": end.reason, "metrics": driver.machine.last_row})
        return end

    # ---- inside -----------------------------------------------------------------------------------------------------

    def _adopt(self, trial: Trial, files: RunFiles, source: Source, display: Display) -> None:
        """Make another trial's checkpoint this one's newest."""
        if source.trial is trial:
            return  # it goes on from its own, with another configuration
        chosen = self._chosen(trial, source)
        if chosen is None:
            display.on_message(f"trial {source.trial.trial_id} has no checkpoint to go on from", "warning")
            return
        pin = pin_of(self.directory(source.trial), chosen)
        place = chosen.name if stored_elsewhere(chosen.name) else pin.place
        n = max(trial.reports, 1)
        own, ever = _checkpoints(files.work)
        if any(c.n == n and c.name == place for c in ever):
            return  # an earlier driver has done it
        for checkpoint in [c for c in own if c.n >= trial.reports]:
            files.persist(CheckpointDeleted(n=checkpoint.n, name=checkpoint.name))
            if not stored_elsewhere(checkpoint.name):
                files.checkpoints.delete(checkpoint.name)
        files.persist(
            CheckpointCommitted(n=n, attempt=0, name=place, staging="", metrics=chosen.metrics, files=chosen.files)
        )


def _checkpoints(directory: Path) -> tuple[list[CommittedCheckpoint], list[CommittedCheckpoint]]:
    """Return the checkpoints that a trial has, and those that it ever had."""
    records = read_journal(directory / "journal.jsonl")
    ever = fold(record for record in records if not isinstance(record, CheckpointDeleted))
    return fold(records).checkpoints, ever.checkpoints
