"""The driver of an experiment: hands events to its machine, and starts, answers and ends the runs of its trials."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from shoal._core import commands as do
from shoal._core import events as on
from shoal._core import search
from shoal._core.contracts import Engine, Lease
from shoal._core.experiment import Experiment
from shoal._core.failure import headline
from shoal._core.records import DriverStarted
from shoal._core.scaling import GroupRequest
from shoal._core.states import RunState
from shoal._core.trials import Trial
from shoal._runtime.attendance import Attendance
from shoal._runtime.failures import failed, tell
from shoal._runtime.ordered import Ordered
from shoal._runtime.run_driver import RunDriver
from shoal._runtime.rundir import RunFiles
from shoal._runtime.search_display import SearchDisplay, TrialDisplay
from shoal._runtime.supervisor import Supervisor
from shoal._runtime.trial_runs import Source, TrialRuns
from shoal._worker.remote import Remote

SHOWN = 100  # trials whose workers are told of to those who look from outside
REFRESH = 5.0  # seconds between two copies of the journal to storage that is not a disk
KEPT_ERRORS = 100  # exceptions of trials that are kept as objects; the text of all of them is on disk


class SearchListener:
    """Is told what happens in a search, in the thread of ``fit()``. It does not raise."""

    def begin(self, machine: Experiment, directory: Path, say: Callable[[str, str], None]) -> None:
        """Nothing has been started yet; ``say`` tells the person something, with a level."""

    def step(self, done: bool) -> None:
        """Something that happened is about to be handled, or is."""

    def on_trial(self, what: str, trial: Trial) -> None:
        """A trial was ``created``, ``started``, ``cloned``, had a ``result``, or is ``paused``, ``terminated``, …"""

    def on_checkpoint(self, trial: Trial, place: Path | Remote) -> None:
        """A trial has a new checkpoint."""

    def on_recover(self, trial: Trial) -> None:
        """The workers of a trial are started again after a failure."""

    def tick(self, now: float) -> None:
        """Called now and then."""

    def end(self) -> None:
        """The search is over."""


@dataclass(frozen=True)
class _Observer:
    """What the run of one trial tells its experiment."""

    driver: SearchDriver
    trial_id: str

    def placed(self) -> None:
        self.driver.see(search.TrialPlaced(trial_id=self.trial_id))

    def reported(self, n: int, row: dict[str, Any], saved: bool) -> None:
        self.driver.see(search.TrialReported(trial_id=self.trial_id, n=n, row=row, saved=saved))

    def committed(self, n: int, name: str) -> None:
        self.driver.checkpoint_committed(self.trial_id, n, name)

    def restarted(self) -> None:
        self.driver.run_restarted(self.trial_id)

    def ended(self) -> None:
        self.driver.run_ended(self.trial_id)


@dataclass(kw_only=True)
class SearchParts:
    """What the driver of an experiment works with."""

    name: str
    machine: Experiment
    runs: TrialRuns
    files: RunFiles
    display: SearchDisplay
    driver: DriverStarted
    resumption: search.Resumption
    room: Callable[[], int | None]
    listener: SearchListener = field(default_factory=SearchListener)
    errors: dict[str, BaseException] = field(default_factory=dict)


class SearchDriver(Ordered):
    """Drives one experiment, in the loop of a supervisor, beside the drivers of its trials."""

    def __init__(self, parts: SearchParts, supervisor: Supervisor, engine: Engine):
        super().__init__(parts.files)
        self.parts = parts
        self.machine = parts.machine
        self.outcome: search.FinishSearch | None = None
        self.timers: dict[str, float] = {}
        self._supervisor = supervisor
        self._engine = engine
        self._runs: dict[str, RunDriver] = {}
        self._sources: dict[str, Source] = {}
        self._hosts: Lease | None = None
        self._room: tuple[int | None, Mapping[str, float]] = (None, {})
        self._attendance: Attendance | None = None

    def run(self) -> search.FinishSearch:
        """Drive the experiment to its end, and return how it ended."""
        self._supervisor.add("search", self)
        self._supervisor.keeps_hosts = True
        try:
            self.files.wake_with(self._supervisor.wake)
            self._hold_hosts()
            self._attendance = Attendance(self.files, self, self._supervisor)
            self._beat()
            self._refresh()
            self.parts.display.begin(self.parts.name, str(self.files.path), self.machine)
            self.parts.listener.begin(self.machine, self.files.work, self.parts.display.on_message)
            self._look_at_room()
            begin = search.Begin(wall=time.time(), driver=self.parts.driver, resumption=self.parts.resumption)
            self.handle(begin)
            self._supervisor.run(lambda: self.outcome is not None)
            assert self.outcome is not None
            return self.outcome
        finally:
            if self._attendance is not None:
                self._attendance.close()
            for run in self._runs.values():
                run.close()
            if self._hosts is not None:
                self._hosts.release()
            self.files.wake_with(lambda: None)
            self.parts.display.close()
            self._supervisor.close()

    def post(self, event: on.Event) -> None:
        """Take an event from any thread or signal handler."""
        self._supervisor.post(self, event)

    def see(self, event: on.Event) -> None:
        """Take an event of this loop, after what is being done now."""
        self._supervisor.enqueue(partial(self.handle, event))

    def checkpoint_committed(self, trial_id: str, n: int, name: str) -> None:
        """A checkpoint of a trial is visible."""
        place = self._runs[trial_id].files.checkpoint(name)
        trial = self.machine.table[trial_id]
        for other_id, adoption in self.machine.table.adoptions.items():
            if adoption == (trial_id, n):
                self.parts.runs.reserve(self.machine.table[other_id], Source(trial, n))
        self.parts.listener.on_checkpoint(trial, place)
        self.see(search.TrialSaved(trial_id=trial_id, n=n))

    def run_restarted(self, trial_id: str) -> None:
        """The workers of a trial are started again after a failure."""
        self.parts.listener.on_recover(self.machine.table[trial_id])
        self.see(search.TrialRestarted(trial_id=trial_id))

    def run_ended(self, trial_id: str) -> None:
        """The run of a trial is over: let go of it, after what is being done now."""
        self._supervisor.enqueue(partial(self._conclude, trial_id))

    # ---- what the loop calls ----------------------------------------------------------------------------------------

    def handle(self, event: on.Event) -> None:
        """Let the machine decide, and do what it wants."""
        if isinstance(event, on.StacksAsked):
            for run in list(self._runs.values()):
                run.handle(event)
            return
        self.parts.listener.step(done=False)
        self.carry_out(self.machine.handle(event, time.monotonic()))
        self.parts.listener.step(done=True)

    def urgent(self, command: do.Command, held: deque[do.Command]) -> bool:
        """Whether a command may overtake those that wait until the journal is durable."""
        # A trial waits for the answer; if it is lost with this driver, the next one gives the same.
        return isinstance(command, search.Decide)

    def settle(self) -> None:
        """Stop if nothing can be written down any more."""
        if self.files.broken and self.outcome is None:
            self.handle(on.StopAsked(reason=self.files.broken, kill=True))

    def tick(self) -> float:
        """Draw if it is time; return after how many seconds to call again."""
        self.parts.listener.tick(time.monotonic())
        return self.parts.display.tick()

    def fire(self, name: str) -> None:
        """A timer has come."""
        if name == "lease":
            self._beat()
            self._look_at_room()
        elif name == "mirror":
            self._refresh()
        else:
            self.handle(on.TimerFired(name=name))

    def _beat(self) -> None:
        self.files.beat()
        if self._attendance is not None:
            self._attendance.look()
            self._attendance.tell()
        self._supervisor.set_timer(self, "lease", time.monotonic() + self.files.lease.interval)

    def _look_at_room(self) -> None:
        """See for how many trials the engine has room now: machines come and go."""
        room, resources = self.parts.room(), self._engine.total()
        if (room, resources) != self._room:
            self._room = (room, resources)
            self.handle(search.RoomChanged(trials=room, resources=resources))

    def _refresh(self) -> None:
        if self.files.mirrored:
            self.files.refresh()
            self._supervisor.set_timer(self, "mirror", time.monotonic() + REFRESH)

    def status(self) -> dict[str, Any]:
        """Return how the search is, and the workers of trials that run, as plain data."""
        counts = Counter(str(trial.status) for trial in self.machine.table.get_trials())
        workers = [
            {"trial": self.parts.runs.directory(self.machine.table[trial_id]), **worker}
            for trial_id, run in list(self._runs.items())[:SHOWN]
            for worker in run.status()["workers"]
        ]
        return {"state": "RUNNING", "trials": dict(counts), "workers": workers}

    def _hold_hosts(self) -> None:
        """Have hosts serve this loop all the time, and not anew for each trial."""
        request = GroupRequest(min_workers=1, max_workers=1, resources={})
        self._hosts = self._engine.acquire(request, _Holder(self))

    # ---- deeds ------------------------------------------------------------------------------------------------------

    def _persist(self, command: search.PersistSearch) -> None:
        self.files.persist(command.record)

    def _adopt(self, command: search.Adopt) -> None:
        self._sources[command.trial_id] = Source(self.machine.table[command.source_id], command.n)

    def _start_trial(self, command: search.StartTrial) -> None:
        trial = self.machine.table[command.trial_id]
        source = self._sources.pop(command.trial_id, None)
        try:
            run = self.parts.runs.prepare(
                trial,
                anew=command.anew,
                source=source,
                display=TrialDisplay(self.parts.display, trial.trial_id),
                observer=_Observer(self, trial.trial_id),
            )
        except Exception as error:  # a configuration that cannot be sent, a directory that cannot be made
            self.parts.errors[trial.trial_id] = error
            self.see(
                search.TrialEnded(trial_id=trial.trial_id, completed=False, error=f"{type(error).__name__}: {error}")
            )
            return
        for row in [] if command.anew else self.parts.runs.missed(trial):
            # It stored a checkpoint of reports of which the last driver could write nothing down any more.
            n = row["training_iteration"]
            self.see(search.TrialReported(trial_id=trial.trial_id, n=n, row=row, saved=True))
            self.see(search.TrialSaved(trial_id=trial.trial_id, n=n))
        self._runs[trial.trial_id] = run
        self._supervisor.add_run(trial.trial_id, run)
        run.begin()

    def _decide(self, command: search.Decide) -> None:
        run = self._runs.get(command.trial_id)
        if run is None:
            return
        if command.stop:
            run.handle(on.StopAsked(reason=command.stop, at=command.n))
        else:
            run.handle(on.Decided(n=command.n))

    def _stop_trial(self, command: search.StopTrial) -> None:
        run = self._runs.get(command.trial_id)
        if run is not None and command.grace:
            run.handle(on.PreemptionNotice(reason=command.reason, grace=command.grace))
        elif run is not None:
            run.handle(on.StopAsked(reason=command.reason, kill=command.kill))

    def _conclude(self, trial_id: str) -> None:
        run = self._runs.pop(trial_id)
        self._supervisor.remove(trial_id)
        trial = self.machine.table[trial_id]
        end = self.parts.runs.conclude(trial, run)
        error = ""
        if end.state is RunState.FAILED:
            error = headline(end.failures[0]) if end.failures else end.reason
            (run.files.work / "error.txt").write_text(tell(end, run.files, trial_id) if end.failures else end.reason)
            if len(self.parts.errors) < KEPT_ERRORS:
                self.parts.errors[trial_id] = failed(end, run.files, trial_id)
        completed = end.state is RunState.FINISHED
        self.handle(search.TrialEnded(trial_id=trial_id, completed=completed, error=error))

    def _updated(self, command: search.Updated) -> None:
        trial = self.machine.table[command.trial_id]
        adoption = self.machine.table.adoptions.get(command.trial_id)
        if command.what == "cloned" and adoption is not None:
            self.parts.runs.reserve(trial, Source(self.machine.table[adoption.source_id], adoption.n))
        elif trial.finished:
            self.parts.runs.release(trial)
        self.parts.display.on_trial(command.what, trial)
        self.parts.listener.on_trial(command.what, trial)

    def _say(self, command: do.Say) -> None:
        self.parts.display.on_message(command.text, command.level)

    def _set_timer(self, command: do.SetTimer) -> None:
        self._supervisor.set_timer(self, command.name, command.at)

    def _finish(self, command: search.FinishSearch) -> None:
        self.outcome = command
        best = self.machine.best
        place = f"{self.files.path}/{self.parts.runs.directory(best)}" if best is not None else ""
        self.parts.listener.end()
        self.parts.display.end(command.state, command.reason, place)

    deeds: ClassVar[Mapping[type[do.Command], Callable[[Any, Any], None]]] = {
        search.PersistSearch: _persist,
        search.StartTrial: _start_trial,
        search.Adopt: _adopt,
        search.Decide: _decide,
        search.StopTrial: _stop_trial,
        search.Updated: _updated,
        search.FinishSearch: _finish,
        do.Say: _say,
        do.SetTimer: _set_timer,
    }


@dataclass(frozen=True)
class _Holder:
    """The experiment as an engine sees it: it wants hosts that serve it, and no room."""

    driver: SearchDriver

    @property
    def run_id(self) -> str:
        return self.driver._supervisor.name

    @property
    def title(self) -> str:
        return self.driver.parts.name

    @property
    def endpoint(self) -> Any:
        return self.driver._supervisor.endpoint

    def post(self, event: on.Event) -> None:
        """Nothing follows from what happens to it: trials on a host that is lost are told by themselves."""
