"""The driver of one run: hands events to its machine, and carries out the commands that come back."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import msgspec

from shoal._core import commands as do
from shoal._core import events as on
from shoal._core.contracts import Callback, Engine, Lease
from shoal._core.failure import headline
from shoal._core.group import Group, Worker
from shoal._core.job import Job
from shoal._core.messages import Endpoint, NativeStacks, WorkerExited, WorkerOutput
from shoal._core.records import AttemptEnded, AttemptStarted, CheckpointCommitted, DriverStarted, Record
from shoal._core.run import Run
from shoal._core.scaling import fitting
from shoal._runtime import checkpoint_deeds
from shoal._runtime.attendance import Attendance
from shoal._runtime.display import Display
from shoal._runtime.ordered import Ordered
from shoal._runtime.rundir import RunFiles
from shoal._runtime.validation import Validator
from shoal._runtime.workers import Workers

if TYPE_CHECKING:
    from shoal._runtime.supervisor import Supervisor

PATIENCE = 3.0  # seconds that storage has for the last words of a run that is to end at once
REFRESH = 5.0  # seconds between two copies of metrics and logs to storage that is not a disk


class Observer(Protocol):
    """What an experiment is told of one of its runs."""

    def placed(self) -> None:
        """The engine gave it its room."""

    def reported(self, n: int, row: dict[str, Any], saved: bool) -> None:
        """Rank 0 made its ``n``-th report, or asks what follows from one that it is about to make."""

    def committed(self, n: int, name: str) -> None:
        """The checkpoint of the ``n``-th report is visible under this name."""

    def restarted(self) -> None:
        """Its workers are started again after a failure."""

    def ended(self) -> None:
        """It is over."""


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What the driver of a run works with."""

    job: Job
    run_id: str
    engine: Engine
    files: RunFiles
    display: Display
    driver: DriverStarted
    make_workers: Callable[[RunDriver], Workers]
    validator: Validator | None = None
    observer: Observer | None = None
    began: float = 0.0


@dataclass(frozen=True)
class Ticketed:
    """The run as an engine sees it that was asked for room: its answers bear the number of the request."""

    driver: RunDriver
    ticket: int

    @property
    def run_id(self) -> str:
        """Under which name hosts serve the supervisor that drives this run."""
        return self.driver.supervisor.name

    @property
    def title(self) -> str:
        """The run's name."""
        return self.driver.parts.job.name

    @property
    def endpoint(self) -> Endpoint:
        """Where hosts and workers connect to."""
        return self.driver.endpoint

    def post(self, event: on.Event) -> None:
        """Pass an event on."""
        if isinstance(event, (on.Acquired, on.CapacityChanged)):
            event = msgspec.structs.replace(event, ticket=self.ticket)
        self.driver.post(event)


class RunDriver(Ordered):
    """Drives one run, in the loop of a supervisor.

    Attributes
    ----------
    machine : Run
        What decides.
    outcome : Finish or None
        How the run ended, once it has.
    timers : dict
        When each timer of the run fires, by name.
    """

    def __init__(self, machine: Run, parts: Parts, supervisor: Supervisor):
        super().__init__(parts.files)
        self.machine = machine
        self.parts = parts
        self.supervisor = supervisor
        self.run_id = parts.run_id
        self.outcome: do.Finish | None = None
        self.timers: dict[str, float] = {}
        self._attempt = 0
        self._callbacks: Sequence[Callback] = (parts.display, *parts.job.callbacks)
        self._lease: Lease | None = None
        self._attendance: Attendance | None = None
        self._workers = parts.make_workers(self)

    def post(self, event: on.Event) -> None:
        """Take an event from any thread or signal handler."""
        self.supervisor.post(self, event)

    @property
    def endpoint(self) -> Endpoint:
        """Where hosts and workers connect to."""
        return self.supervisor.endpoint

    @property
    def validator(self) -> Validator | None:
        """What scores the run's checkpoints."""
        return self.parts.validator

    def run(self) -> do.Finish:
        """Drive the run to its end, alone in its supervisor's loop, and return how it ended."""
        self.supervisor.add_run(self.run_id, self)
        try:
            self.begin()
            self.supervisor.run(lambda: self.outcome is not None)
            assert self.outcome is not None
            return self.outcome
        finally:
            self.close()
            self.supervisor.close()

    def begin(self) -> None:
        """Start the run."""
        self.files.wake_with(self.supervisor.wake)
        job = self.parts.job
        self._tell_callbacks("on_run_start", job.name, str(self.files.path), config=job.config, began=self.parts.began)
        if self.files.lease.interval:
            self._attendance = Attendance(self.files, self, self.supervisor)
        self._beat()
        self._refresh_mirror()
        self.handle(on.Begin(wall=time.time(), driver=self.parts.driver))

    def close(self) -> None:
        """Let go of what the run holds, however it ended."""
        self.timers.clear()
        if self._attendance is not None:
            self._attendance.close()
        if self.parts.validator is not None:
            self.parts.validator.close()
        self.files.wake_with(lambda: None)
        if self._lease is not None:
            self._lease.release()
            self._lease = None
        self.parts.display.close()
        del self._workers  # which know this driver: the two of them are no work for the garbage collector

    # ---- what the loop calls ----------------------------------------------------------------------------------------

    def handle(self, event: on.Event) -> None:
        """Let the machine decide, and do what it wants."""
        if isinstance(event, on.StopAsked) and event.kill:
            self._set_timer(do.SetTimer(name="patience", at=time.monotonic() + PATIENCE))
        if isinstance(event, on.HostLost):
            self.parts.engine.lost(event.host)
        if isinstance(event, on.Acquired) and self.parts.observer is not None:
            self.parts.observer.placed()
        self.carry_out(self.machine.handle(event, time.monotonic()))

    def settle(self) -> None:
        """Write what has come together in this turn of the loop."""
        self.files.guard(self.files.metrics.flush)
        if self.files.broken and self.outcome is None:
            self.handle(on.StorageFailed(reason=self.files.broken))

    def fire(self, name: str) -> None:
        """A timer has come."""
        if name == "lease":
            self._beat()
        elif name == "patience":
            self.files.give_up()
            self.carry_on()
        elif name == "mirror":
            self._refresh_mirror()
        else:
            self.handle(on.TimerFired(name=name))

    def tick(self) -> float:
        """Draw if it is time; return after how many seconds to call again."""
        return self.parts.display.tick()

    def status(self) -> dict[str, Any]:
        """Return how the run and each of its workers is, as plain data."""
        group, now = self.machine.group, time.monotonic()
        workers = [] if group is None else [how_it_is(worker, group, now) for worker in group.workers]
        return {"state": self.machine.state.value, "attempt": group.attempt if group else 0, "workers": workers}

    def hear_host(self, message: WorkerOutput | WorkerExited | NativeStacks) -> None:
        """Take what a host says of a worker of this run."""
        match message:
            case WorkerOutput():
                self.files.guard(self.files.logs.write, message.rank, message.data)
                self.parts.display.on_output(message.rank, message.data)
            case WorkerExited():
                self.parts.display.on_output_end(message.rank)
                self.handle(on.Exited(attempt=message.attempt, rank=message.rank, exit=message.exit))
            case NativeStacks():
                self.handle(on.NativeStacksRead(attempt=message.attempt, rank=message.rank, text=message.text))

    def urgent(self, command: do.Command, held: deque[do.Command]) -> bool:
        """Whether a command may overtake those that wait until the journal is durable."""
        if isinstance(command, do.Kill):
            return not any(isinstance(waiting, do.StartWorkers) for waiting in held)
        # Workers that are there already say hello at any time, and there has to be room for them by then.
        return isinstance(command, do.Acquire) and self.parts.engine.in_process

    def committed(self, n: int, name: str, path: str) -> None:
        """The checkpoint of the ``n``-th report is visible."""
        self._tell_callbacks("on_checkpoint", n, path, self.machine.last_row)
        if self.parts.observer is not None:
            self.parts.observer.committed(n, name)

    # ---- deeds ------------------------------------------------------------------------------------------------------

    def _beat(self) -> None:
        self.files.beat()
        if self._attendance is not None:
            self._attendance.look()
            self._attendance.tell()
        if self.files.lease.interval:
            self._set_timer(do.SetTimer(name="lease", at=time.monotonic() + self.files.lease.interval))

    def _refresh_mirror(self) -> None:
        if self.files.mirrored:
            self.files.refresh()
            self._set_timer(do.SetTimer(name="mirror", at=time.monotonic() + REFRESH))

    def _acquire(self, command: do.Acquire) -> None:
        self._give_room_back()
        request, total = self.parts.job.request, self.parts.engine.total()
        # Nobody waits for more than the machines can ever give.
        least = max(request.min_workers, min(command.at_least, fitting(request, total)))
        asked = msgspec.structs.replace(request, min_workers=least)
        self._lease = self.parts.engine.acquire(asked, Ticketed(self, command.ticket))

    def _release(self, command: do.Release) -> None:
        self._give_room_back()

    def _give_room_back(self) -> None:
        if self._lease is not None:
            self.supervisor.room_is_given_back()
            self._lease.release()
            self._lease = None

    def _start_workers(self, command: do.StartWorkers) -> None:
        self._workers.start(command)

    def _set_up(self, command: do.SetUp) -> None:
        self._workers.set_up(command)

    def _tell(self, command: do.Tell) -> None:
        self._workers.tell(command)

    def _kill(self, command: do.Kill) -> None:
        self._workers.kill(command, self.machine.group)

    def _dump_native_stacks(self, command: do.DumpNativeStacks) -> None:
        self._workers.dump_native_stacks(command, self.machine.group)

    def _persist(self, command: do.Persist) -> None:
        if isinstance(command.record, CheckpointCommitted):
            self.files.flush_metrics()  # whoever goes on from the checkpoint finds the reports that led to it
        self.files.persist(command.record)
        self._tell_of_attempt(command.record)

    def _tell_of_attempt(self, record: Record) -> None:
        if isinstance(record, AttemptStarted):
            info = {"hosts": sorted(set(record.hosts)), "checkpoint": record.checkpoint}
            self._tell_callbacks("on_attempt_start", record.attempt, record.world_size, **info)
        elif isinstance(record, AttemptEnded):
            if record.failures:
                causes = [headline(failure) for failure in record.failures]
                self._tell_callbacks("on_failure", record.attempt, causes[0], causes=causes)
            self._tell_callbacks("on_attempt_end", record.attempt, record.reason, reports=record.reports)

    def _write_row(self, command: do.WriteRow) -> None:
        self.files.metrics.add(command.row)
        self._tell_callbacks("on_report", command.row)
        if self.parts.observer is not None:
            self.parts.observer.reported(command.row["training_iteration"], command.row, command.saved)

    def _consult(self, command: do.Consult) -> None:
        if self.parts.observer is not None:
            self.parts.observer.reported(command.row["training_iteration"], command.row, True)

    def _set_timer(self, command: do.SetTimer) -> None:
        self.supervisor.set_timer(self, command.name, command.at)

    def _keep_stacks(self, command: do.KeepStacks) -> None:
        self.files.guard(self.files.keep_stacks, command.attempt, command.rank, command.text)
        if not command.quiet:
            text = f"stacks of rank {command.rank}:\n{command.text.rstrip()}"
            self._tell_callbacks("on_message", text, "warning")

    def _say(self, command: do.Say) -> None:
        self._tell_callbacks("on_message", command.text, command.level)

    def _notify(self, command: do.Notify) -> None:
        self._tell_callbacks("on_state", command.state.value, command.attempt, command.workers)
        if self.parts.observer is not None and command.attempt > self._attempt > 0:
            self.parts.observer.restarted()
        self._attempt = command.attempt
        if self._attendance is not None:
            self._attendance.tell()

    def _finish(self, command: do.Finish) -> None:
        self.outcome = command
        self._tell_callbacks("on_run_end", command.state.value, command.reason)
        if self.parts.observer is not None:
            self.parts.observer.ended()

    def _tell_callbacks(self, method: str, *arguments: Any, **info: Any) -> None:
        for callback in self._callbacks:
            try:
                getattr(callback, method)(*arguments, **info)
            except Exception as error:
                text = f"{type(callback).__name__}.{method} raised {type(error).__name__}: {error}; the run goes on"
                self.parts.display.on_message(text, "warning")

    deeds: ClassVar[Mapping[type[do.Command], Callable[[Any, Any], None]]] = {
        do.Acquire: _acquire,
        do.Release: _release,
        do.StartWorkers: _start_workers,
        do.SetUp: _set_up,
        do.Tell: _tell,
        do.Kill: _kill,
        do.Persist: _persist,
        do.WriteRow: _write_row,
        do.Consult: _consult,
        **checkpoint_deeds.DEEDS,
        do.SetTimer: _set_timer,
        do.DumpNativeStacks: _dump_native_stacks,
        do.KeepStacks: _keep_stacks,
        do.Say: _say,
        do.Notify: _notify,
        do.Finish: _finish,
    }


def how_it_is(worker: Worker, group: Group, now: float) -> dict[str, Any]:
    """Return what is known of a worker: ``silent`` is the time since its last report in seconds, ``cpu`` in cores."""
    usage = worker.usage
    return {
        "rank": worker.rank,
        "host": worker.placement.hostname,
        "pid": worker.pid,
        "phase": "gone" if worker.gone and not worker.over else worker.phase.value,
        "report": group.assembly.delivered(worker.rank),
        "silent": round(now - worker.heard_at, 2) if worker.heard_at else None,
        **({"cpu": usage.cpu, "memory": usage.memory, "gpu_memory": usage.gpu_memory} if usage else {}),
    }
