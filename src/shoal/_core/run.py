"""The life of one run, decided without I/O: ``handle(event, now)`` returns the commands to carry out, in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from shoal._core import commands as do
from shoal._core import events as on
from shoal._core.checkpoints import Checkpoints
from shoal._core.ending import GRACE_AFTER_DEATH, GRACE_AFTER_STOP, Ending, grace_after
from shoal._core.failure import Failure, FailurePolicy
from shoal._core.group import Group, Phase, Worker
from shoal._core.hang import Hang
from shoal._core.messages import (
    Alive,
    Failed,
    Farewell,
    Finished,
    FromWorker,
    Left,
    Offer,
    Ready,
    Report,
    Stacks,
    Stored,
    WorkerHello,
)
from shoal._core.outbox import Outbox
from shoal._core.records import AttemptEnded, AttemptStarted, History, RunEnded
from shoal._core.retention import CheckpointPolicy
from shoal._core.scaling import GroupRequest, place
from shoal._core.states import RunState, Step, next_state
from shoal._core.verdict import Verdict, judge

SLOW_START = 30.0


class RunSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked of a run, as far as decisions depend on it."""

    request: GroupRequest
    failure: FailurePolicy = FailurePolicy()
    checkpoint: CheckpointPolicy = CheckpointPolicy()
    start_checkpoint: str | None = None


class Run:
    """One ``fit()`` as a state machine.

    Parameters
    ----------
    spec : RunSpec
        What was asked.
    history : History, optional
        What an earlier driver's journal says; empty for a new run.
    last_row : mapping, optional
        The last report that an earlier driver has kept.
    """

    def __init__(self, spec: RunSpec, history: History | None = None, last_row: Mapping[str, Any] | None = None):
        self.spec = spec
        self.history = history or History()
        self.state = RunState.PENDING
        self.group: Group | None = None
        self.last_row: dict[str, Any] = dict(last_row or {})
        self._slots: tuple[on.HostSlots, ...] = ()
        self._stop: on.StopAsked | None = None
        self._broken_storage = ""
        self._host_lost = False
        self._value: bytes | None = None
        self._out = Outbox(self.history)
        self._checkpoints = Checkpoints(spec.checkpoint, self._out)
        self._ending = Ending(self._out)
        self._hang = Hang(spec.failure.progress_timeout, self._out)
        self._story: deque[str] = deque(maxlen=100)
        self._handlers: dict[type[on.Event], Callable[[Any], None]] = {
            on.Begin: self._begin,
            on.Acquired: self._acquired,
            on.Infeasible: self._infeasible,
            on.Heard: self._heard,
            on.Exited: self._exited,
            on.HostLost: self._lost,
            on.CommitDone: self._commit_done,
            on.Inspected: self._inspected,
            on.StorageFailed: self._storage_failed,
            on.StopAsked: self._stop_asked,
            on.TimerFired: self._timer,
        }
        self._listeners: dict[type[FromWorker], Callable[[Group, Worker, Any], None]] = {
            WorkerHello: self._hello,
            Ready: self._ready,
            Offer: self._offer,
            Report: self._report,
            Stored: self._stored,
            Finished: self._finished,
            Failed: self._failed,
            Left: self._left,
            Stacks: self._stacks,
        }

    def handle(self, event: on.Event, now: float) -> list[do.Command]:
        """Take one event at the time ``now`` (seconds of a clock that never goes back) and say what to do."""
        if self.state.final:
            return []
        self._out.now = now
        if not (isinstance(event, on.Heard) and isinstance(event.message, (Report, Alive))):
            self._story.append(f"{now:.3f} {self.state} {_brief(event)}")
        self._handlers[type(event)](event)
        return self._out.take()

    # ---- the life of the run ----------------------------------------------------------------------------------------

    def _begin(self, event: on.Begin) -> None:
        self._out.wall_offset = event.wall - self._out.now
        self._out.persist(event.driver)
        self._out.emit(do.Acquire())
        self._notify()

    def _acquired(self, event: on.Acquired) -> None:
        self._slots = event.slots
        self._prepare_attempt()

    def _prepare_attempt(self) -> None:
        """Begin the next attempt once the newest checkpoint was looked at: every byte of it after a resume."""
        resumed = self.group is None
        if not self._checkpoints.inspect(full=resumed):
            self._start_attempt()

    def _inspected(self, event: on.Inspected) -> None:
        if self.state not in {RunState.PENDING, RunState.RESTARTING, RunState.RESIZING}:
            return
        self._checkpoints.inspected(event.n, event.damage)
        if event.damage:
            self._prepare_attempt()
        else:
            self._start_attempt()

    def _infeasible(self, event: on.Infeasible) -> None:
        self._finish(Step.GIVE_UP, event.reason)

    def _start_attempt(self) -> None:
        self._step(Step.ACQUIRED)
        self._ending.reset()
        number = self.history.attempts[-1].number + 1 if self.history.attempts else 1
        if self.group is None and number > 1:
            self._out.emit(do.Discard(attempt=number - 1))  # an earlier driver died without doing it
        latest = self._checkpoints.latest
        self.group = Group(number, place(self._slots), latest.n if latest else 0)
        hosts = [worker.placement.hostname for worker in self.group.workers]
        self._out.persist(
            AttemptStarted(attempt=number, world_size=len(hosts), hosts=hosts, checkpoint=self.group.start)
        )
        placements = tuple(worker.placement for worker in self.group.workers)
        self._out.emit(do.StartWorkers(attempt=number, workers=placements))
        self._out.timer(f"start:{number}", SLOW_START)
        self._notify()

    def _end(self, grace: float) -> None:
        """Let the attempt end: who has finished may go, the rest is killed after ``grace`` seconds."""
        group = self._current()
        if self.state is not RunState.ENDING:
            self._step(Step.ENDING)
        self._ending.wave_off(group)
        self._ending.grace(group, grace)
        self._notify()

    def _conclude(self) -> None:
        """Every worker is gone: decide what follows."""
        group = self._current()
        verdict = judge(
            group,
            self.spec.failure,
            self.history,
            stop=self._stop,
            broken_storage=self._broken_storage,
        )
        self._out.emit(do.Discard(attempt=group.attempt))
        self._out.persist(
            AttemptEnded(
                attempt=group.attempt,
                reason=verdict.attempt_reason,
                reports=max(group.reports()),
                failures=verdict.failures,
            )
        )
        if verdict.step is Step.RESTART:
            self._restart(verdict)
        else:
            self._finish(verdict.step, verdict.run_reason, verdict.failures)

    def _restart(self, verdict: Verdict) -> None:
        latest = self._checkpoints.latest
        origin = f"checkpoint {latest.name}" if latest else "the beginning"
        delay = f" in {verdict.wait:g} s" if verdict.wait else ""
        doubt = (
            ". It was the same exception at the same report as before; this will hardly heal"
            if verdict.hopeless
            else ""
        )
        self._out.say(f"{verdict.attempt_reason}; starting again from {origin}{delay}{doubt}", "warning")
        self._step(Step.RESTART)
        self._notify()
        if verdict.wait:
            self._out.timer("backoff", verdict.wait)
        else:
            self._begin_again()

    def _begin_again(self) -> None:
        if self._host_lost:
            self._host_lost = False
            self._out.emit(do.Release())
            self._out.emit(do.Acquire())
        else:
            self._prepare_attempt()

    def _finish(self, step: Step, reason: str, failures: list[Failure] | None = None) -> None:
        self._step(step)
        self._out.persist(RunEnded(state=self.state.value, reason=reason))
        self._out.emit(do.Release())
        self._notify()
        self._out.emit(do.Finish(state=self.state, failures=tuple(failures or ()), reason=reason, value=self._value))

    # ---- what workers say -------------------------------------------------------------------------------------------

    def _heard(self, event: on.Heard) -> None:
        group = self._live
        if group is None or event.attempt != group.attempt or not 0 <= event.rank < len(group.workers):
            return
        listener = self._listeners.get(type(event.message))
        if listener:
            listener(group, group.workers[event.rank], event.message)

    def _hello(self, group: Group, worker: Worker, message: WorkerHello) -> None:
        if worker.phase is not Phase.STARTING or self.state is RunState.ENDING:
            return
        worker.phase = Phase.SETTING_UP
        latest = self._checkpoints.latest
        self._out.emit(
            do.SetUp(
                attempt=group.attempt,
                ranks=worker.placement.ranks,
                checkpoint=latest.name if latest else self.spec.start_checkpoint,
                checkpoint_report=group.start,
            )
        )

    def _ready(self, group: Group, worker: Worker, message: Ready) -> None:
        if worker.phase is not Phase.SETTING_UP:
            return
        worker.phase = Phase.TRAINING
        if self.state is RunState.STARTING and not any(
            w.phase in {Phase.STARTING, Phase.SETTING_UP} for w in group.workers
        ):
            self._step(Step.READY)
            self._hang.watch(group)
            if self._stop:
                self._ending.ask(group)
        self._notify()

    def _offer(self, group: Group, worker: Worker, message: Offer) -> None:
        for rank, answer in group.offer(worker.rank, message).items():
            self._out.tell(group.attempt, rank, answer)

    def _report(self, group: Group, worker: Worker, message: Report) -> None:
        if message.n <= group.assembly.delivered(worker.rank):
            return
        worker.pace(message.at, self._out.now)
        if worker.rank == 0:
            self.last_row = {
                **message.metrics,
                "training_iteration": message.n,
                "timestamp": message.at,
                "time_total_s": message.at - self.history.attempts[0].started_at,
                "attempt": group.attempt,
            }
            self._out.emit(do.WriteRow(row=self.last_row))
        self._checkpoints.reported(group, worker, message)

    def _stored(self, group: Group, worker: Worker, message: Stored) -> None:
        self._checkpoints.stored(group, worker, message)

    def _finished(self, group: Group, worker: Worker, message: Finished) -> None:
        if worker.over:
            return
        worker.phase = Phase.FINISHED
        worker.stopped = message.stopped
        if worker.rank == 0:
            self._value = message.value
        if message.leftovers:
            threads = ", ".join(message.leftovers)
            self._out.say(f"rank {worker.rank} left threads running, which end now: {threads}", "warning")
        self._checkpoints.closed(group, worker)
        for rank, answer in group.broken_gatherings().items():
            self._out.tell(group.attempt, rank, answer)
        if all(w.over for w in group.workers):
            self._warn_of_uneven_reports(group)
            self._end(GRACE_AFTER_STOP)
        elif message.stopped:
            self._ending.grace(group, GRACE_AFTER_STOP)
        self._notify()

    def _warn_of_uneven_reports(self, group: Group) -> None:
        counts = [n - group.start for n in group.reports()]
        if not self._stop and group.every(Phase.FINISHED) and len(set(counts)) > 1:
            told = ", ".join(f"rank {rank}: {count}" for rank, count in enumerate(counts[:16]))
            self._out.say(f"the ranks reported a different number of times ({told}); rank 0's reports count", "warning")

    def _failed(self, group: Group, worker: Worker, message: Failed) -> None:
        if worker.over:
            return
        failure = group.fail(worker, error=message.error)
        self._out.tell(group.attempt, worker.rank, Farewell())
        self._end(grace_after(failure))

    def _left(self, group: Group, worker: Worker, message: Left) -> None:
        self._gone(group, worker)

    def _stacks(self, group: Group, worker: Worker, message: Stacks) -> None:
        if self._hang.answered(group, worker, message.text):
            self._end_hung_group(group)

    def _end_hung_group(self, group: Group) -> None:
        """No rank has made progress for too long, and their stacks are kept: the attempt has failed."""
        reason = self._hang.conclude(group)
        if reason and self.state is RunState.RUNNING:
            for worker in self._hang.stuck(group):
                group.fail(worker, lost=reason)
            self._end(GRACE_AFTER_DEATH)

    # ---- what happens to processes, machines and storage ------------------------------------------------------------

    def _exited(self, event: on.Exited) -> None:
        group = self._live
        if group is None or event.attempt != group.attempt or group.workers[event.rank].gone:
            return
        worker = group.workers[event.rank]
        if not worker.over:
            failure = group.fail(worker, exit=event.exit)
            worker.gone = True
            self._end(grace_after(failure))
        self._gone(group, worker)

    def _gone(self, group: Group, worker: Worker) -> None:
        worker.gone = True
        self._conclude_if_over(group)

    def _conclude_if_over(self, group: Group) -> None:
        if group.gone and self._checkpoints.settled:
            self._conclude()

    def _lost(self, event: on.HostLost) -> None:
        group = self._live
        if group is None:
            return
        there = [worker for worker in group.alive() if worker.placement.host == event.host]
        if not there:
            return
        self._host_lost = True
        for worker in there:
            if not worker.over:
                group.fail(worker, lost=f"was lost: {event.reason}")
            worker.gone = True
        self._end(GRACE_AFTER_DEATH)
        self._conclude_if_over(group)

    def _commit_done(self, event: on.CommitDone) -> None:
        group = self._live
        if group is not None:
            self._checkpoints.committed(group, event.n)
            self._conclude_if_over(group)

    def _storage_failed(self, event: on.StorageFailed) -> None:
        if self._broken_storage:
            return
        self._broken_storage = event.reason
        self._checkpoints.abandon()
        group = self._live
        if group is None:
            self._finish(Step.GIVE_UP, event.reason)
        elif group.gone:
            self._conclude()
        else:
            self._kill_all(group)

    def _stop_asked(self, event: on.StopAsked) -> None:
        if self._stop and not event.kill:
            return
        self._stop = event
        group = self._live
        if group is None:
            self._finish(Step.STOP, event.reason)
        elif event.kill or self.state is RunState.STARTING:
            self._kill_all(group)
        elif self.state is RunState.RUNNING:
            self._ending.ask(group)

    def _kill_all(self, group: Group) -> None:
        if self.state is not RunState.ENDING:
            self._step(Step.ENDING)
        self._ending.kill(group)

    def _timer(self, event: on.TimerFired) -> None:
        kind, _, rest = event.name.partition(":")
        if kind == "backoff" and self.state is RunState.RESTARTING:
            self._begin_again()
            return
        group = self._live
        if group is None or rest.partition(":")[0] != str(group.attempt):
            return
        if kind == "grace":
            self._kill_all(group)
        elif kind == "start" and self.state is RunState.STARTING:
            phases = ", ".join(f"rank {rank}: {phase}" for rank, phase in group.phases().items())
            self._out.say(f"the worker group is not ready after {SLOW_START:.0f} s ({phases})", "warning")
        elif kind == "progress" and self.state is RunState.RUNNING:
            self._hang.check(group)
        elif kind == "stacks":
            self._end_hung_group(group)
        elif kind == "held":
            self._checkpoints.held(group, int(rest.partition(":")[2]))

    # ---- small things -----------------------------------------------------------------------------------------------

    def _current(self) -> Group:
        if self.group is None:
            raise AssertionError("no attempt was started yet: " + "\n".join(self._story))
        return self.group

    @property
    def _live(self) -> Group | None:
        """The group of the attempt that is going on; between attempts there is none."""
        return self.group if self.state in {RunState.STARTING, RunState.RUNNING, RunState.ENDING} else None

    def _step(self, step: Step) -> None:
        self.state = next_state(self.state, step, list(self._story))

    def _notify(self) -> None:
        group = self.group
        self._out.emit(
            do.Notify(
                state=self.state,
                attempt=group.attempt if group else 0,
                workers=group.phases() if group else {},
            )
        )


def _brief(event: on.Event) -> str:
    text = repr(event)
    return text if len(text) <= 160 else text[:157] + "..."
