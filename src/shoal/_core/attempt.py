"""One attempt of a run, from the start of its workers to the end of the last one.

What workers say and what becomes of them is taken in here; what follows from the attempt's end is the run's to decide.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from shoal._core import commands as do
from shoal._core import events as on
from shoal._core.checkpoints import Checkpoints
from shoal._core.data_wait import DataWaitWatch, share
from shoal._core.ending import GRACE_AFTER_DEATH, GRACE_AFTER_STOP, KILL_LIMIT, Ending, grace_after
from shoal._core.failure import Failure
from shoal._core.group import Group, Phase, Worker
from shoal._core.hang import Hang
from shoal._core.messages import (
    Alive,
    AskCheckpoints,
    Calls,
    Consult,
    Decided,
    Digests,
    Failed,
    Farewell,
    Finished,
    FromWorker,
    Left,
    Offer,
    Preempted,
    Ready,
    Report,
    Stacks,
    Stored,
    WorkerHello,
)
from shoal._core.outbox import Outbox
from shoal._core.preemption import Preemption
from shoal._core.spec import RunSpec
from shoal._core.stacks import Inquiry
from shoal._core.states import RunState, Step

FEW = 64  # workers, whose phases are told of at each change
NOTIFY_EVERY = 0.5  # seconds, for more of them
SLOW_START = 30.0  # seconds after which a group that is not ready is told of


class Attempt:
    """The workers of one attempt while they live.

    Parameters
    ----------
    group : Group
        The workers, not started yet.
    spec : RunSpec
        What was asked of the run.
    checkpoints, outbox
        The run's own.
    step : callable
        Takes a step of the run and returns its state then.
    trained_before : float
        How many seconds earlier attempts have trained.

    Attributes
    ----------
    stop : StopAsked or None
        Set when the run was asked to stop.
    host_lost : bool
        Whether a machine of the group is gone or wanted back, so that its room is of no use any more.
    resize_reason : str
        Why the group is ended to begin again with another number of workers; empty if it is not.
    informed : bool
        Whether the function was told of a preemption and ended.
    value : bytes or None
        What the function returned on rank 0.
    row : dict
        The last report of rank 0 in this attempt.
    """

    def __init__(
        self,
        group: Group,
        spec: RunSpec,
        checkpoints: Checkpoints,
        outbox: Outbox,
        step: Callable[[Step], RunState],
        *,
        trained_before: float = 0.0,
    ):
        self.group = group
        self.state = RunState.STARTING
        self.stop: on.StopAsked | None = None
        self.host_lost = False
        self.resize_reason = ""
        self.informed = False
        self.value: bytes | None = None
        self.row: dict[str, Any] = {}
        self._spec = spec
        self._checkpoints = checkpoints
        self._out = outbox
        self._take_step = step
        self._ending = Ending(outbox)
        self._trained_before = trained_before
        self._preemption = Preemption(spec.failure.preemption_grace, outbox)
        self._data_wait = DataWaitWatch()
        self._notified = (RunState.PENDING, 0.0)
        self._hang = Hang(spec.failure.progress_timeout, outbox)
        self._inquiry = Inquiry(outbox)

    @property
    def over(self) -> bool:
        """Whether every process is gone and every commit done."""
        return self.group.gone and self._checkpoints.settled

    def start(self) -> None:
        """Have every worker started."""
        number = self.group.attempt
        placements = tuple(worker.placement for worker in self.group.workers)
        self._out.emit(do.StartWorkers(attempt=number, workers=placements))
        self._out.timer(f"start:{number}", SLOW_START)
        self.notify()

    # ---- what workers say -------------------------------------------------------------------------------------------

    def heard(self, event: on.Heard) -> None:
        """Take what a worker said."""
        listener = self._listeners.get(type(event.message))
        if listener and 0 <= event.rank < len(self.group.workers):
            listener(self, self.group.workers[event.rank], event.message)

    def _hello(self, worker: Worker, message: WorkerHello) -> None:
        if worker.phase is not Phase.STARTING or self.state is RunState.ENDING:
            return
        worker.phase = Phase.SETTING_UP
        worker.pid = message.pid
        latest = self._checkpoints.latest
        self._out.emit(
            do.SetUp(
                attempt=self.group.attempt,
                ranks=worker.placement.ranks,
                checkpoint=latest.name if latest else self._spec.start_checkpoint,
                checkpoint_report=self.group.start,
            )
        )

    def _ready(self, worker: Worker, message: Ready) -> None:
        if worker.phase is not Phase.SETTING_UP:
            return
        worker.phase = Phase.TRAINING
        if self.group.tally.phases[Phase.TRAINING] == 1:
            self._hang.watch(self.group)
        if self.state is RunState.STARTING and self.group.ready:
            self.state = self._take_step(Step.READY)
            if self.stop:
                self._ending.ask(self.group)
        self.notify()

    def _offer(self, worker: Worker, message: Offer) -> None:
        for rank, answer in self.group.offer(worker.rank, message).items():
            self._out.tell(self.group.attempt, rank, answer)

    def _report(self, worker: Worker, message: Report) -> None:
        if message.n <= self.group.assembly.delivered(worker.rank):
            return
        worker.pace(message.at, self._out.now)
        if hint := self._data_wait.told(worker.rank, message.data):
            self._out.say(hint, "warning")
        if worker.rank == 0:
            self.row = self._row_of(message)
            if message.data is not None:
                self.row["data_wait_share"] = share(message.data)
            self._out.emit(do.WriteRow(row=self.row, saved=message.files is not None))
        self._checkpoints.reported(self.group, worker, message)

    def _row_of(self, message: Report | Consult) -> dict[str, Any]:
        """Return what rank 0 reports, with what is known of its time."""
        return {
            **message.metrics,
            "training_iteration": message.n,
            "timestamp": message.at,
            "time_total_s": self._trained_before + message.at - self._out.history.attempts[-1].started_at,
            "attempt": self.group.attempt,
        }

    def _consult(self, worker: Worker, message: Consult) -> None:
        if worker.rank == 0 and message.n > self.group.assembly.delivered(0):
            self._out.emit(do.Consult(row=self._row_of(message)))

    def decided(self, event: on.Decided) -> None:
        """Nothing follows from a report: whoever waits for that goes on."""
        for worker in self.group.alive():
            self._out.tell(self.group.attempt, worker.rank, Decided(n=event.n))

    def _stored(self, worker: Worker, message: Stored) -> None:
        self._checkpoints.stored(self.group, worker, message)

    def _digests(self, worker: Worker, message: Digests) -> None:
        self._checkpoints.digests(self.group, worker, message)

    def _asked_for_checkpoints(self, worker: Worker, message: AskCheckpoints) -> None:
        self._checkpoints.asked(self.group, worker, message)

    def _finished(self, worker: Worker, message: Finished) -> None:
        if worker.over:
            return
        worker.phase = Phase.FINISHED
        worker.stopped = message.stopped
        self.informed = self.informed or message.informed
        if worker.rank == 0:
            self.value = message.value
        if message.leftovers:
            threads = ", ".join(message.leftovers)
            self._out.say(f"rank {worker.rank} left threads running, which end now: {threads}", "warning")
        self._checkpoints.closed(self.group, worker)
        for rank, answer in self.group.broken_gatherings().items():
            self._out.tell(self.group.attempt, rank, answer)
        if self.group.over:
            self._warn_of_uneven_reports()
            self._end(GRACE_AFTER_STOP)
        elif message.stopped:
            self._ending.grace(self.group, GRACE_AFTER_STOP)
        self.notify()

    def _warn_of_uneven_reports(self) -> None:
        counts = [n - self.group.start for n in self.group.reports()]
        if not self.stop and self.group.every(Phase.FINISHED) and len(set(counts)) > 1:
            told = ", ".join(f"rank {rank}: {count}" for rank, count in enumerate(counts[:16]))
            self._out.say(f"the ranks reported a different number of times ({told}); rank 0's reports count", "warning")

    def _failed(self, worker: Worker, message: Failed) -> None:
        if worker.over:
            return
        failure = self._fail(worker, error=message.error)
        self._out.tell(self.group.attempt, worker.rank, Farewell())
        self._end(grace_after(failure))

    def _left(self, worker: Worker, message: Left) -> None:
        worker.gone = True
        if not worker.over:
            self._end(grace_after(self._fail(worker, lost="left before its function had begun")))

    def _alive(self, worker: Worker, message: Alive) -> None:
        worker.usage = message

    def stacks_asked(self) -> None:
        """Somebody wants to know what every rank is doing."""
        self._inquiry.ask(self.group)

    def _stacks(self, worker: Worker, message: Stacks) -> None:
        self._inquiry.answered(self.group, worker.rank, message.text)
        if self._hang.answered(self.group, worker.rank, message.text):
            self._end_hung_group()

    def native_stacks(self, event: on.NativeStacksRead) -> None:
        """A host has looked at the stacks of a worker."""
        self._inquiry.answered(self.group, event.rank, event.text, native=True)
        if self._hang.answered(self.group, event.rank, event.text, native=True):
            self._end_hung_group()

    def _preempted(self, worker: Worker, message: Preempted) -> None:
        if self.state in {RunState.STARTING, RunState.RUNNING} and not worker.over:
            self._preemption.notice(self.group, worker)

    def host_preempted(self, event: on.PreemptionNotice) -> None:
        """The workers on a host will be taken away: they may save what they have, and the group goes on elsewhere."""
        there = [worker for worker in self.group.workers if worker.placement.host == event.host]
        self.host_lost |= bool(there)
        if self.state in {RunState.STARTING, RunState.RUNNING}:
            for worker in there:
                if not worker.gone and not worker.over:
                    self._preemption.notice(self.group, worker, event.grace)

    def all_preempted(self, grace: float) -> None:
        """All workers will be taken away in so many seconds: each of them may save what it has until then."""
        if self.state in {RunState.STARTING, RunState.RUNNING}:
            self._preemption.notice_for_all(self.group, grace)

    def _calls(self, worker: Worker, message: Calls) -> None:
        self._preemption.calls(self.group, worker.rank, message.count)

    def _take_preempted_away(self) -> None:
        """The grace of a preemption is over."""
        taken = [w for w in self.group.workers if w.rank in self._preemption.ranks and not w.over]
        for worker in taken:
            self._fail(worker, lost="was preempted", preempted=True)
        if taken:  # a rank that has finished by itself is not missed
            self._end(GRACE_AFTER_DEATH)

    def _end_hung_group(self) -> None:
        """No rank has made progress for too long, and their stacks are kept: the attempt has failed."""
        reason = self._hang.conclude(self.group)
        if not reason or self.state is RunState.ENDING:
            return
        stuck = self._hang.stuck(self.group)
        if not stuck:
            self._hang.watch(self.group)  # while ranks were asked, the slow ones have reported after all
            return
        for worker in stuck:
            self._fail(worker, lost=reason)
        self._end(GRACE_AFTER_DEATH)

    # ---- what becomes of workers ------------------------------------------------------------------------------------

    def exited(self, event: on.Exited) -> None:
        """A process is gone."""
        worker = self.group.workers[event.rank]
        if worker.gone:
            return
        worker.gone = True
        if not worker.over:
            preempted = worker.rank in self._preemption.ranks
            failure = self._fail(worker, exit=event.exit, preempted=preempted)
            self._end(self._preemption.left if preempted else grace_after(failure))

    def lost(self, event: on.HostLost) -> None:
        """A machine is gone with all its workers."""
        if all(worker.placement.host != event.host for worker in self.group.workers):
            return
        self.host_lost = True  # also if its workers are gone already: the next attempt cannot begin there
        there = [worker for worker in self.group.alive() if worker.placement.host == event.host]
        unfinished = [worker for worker in there if not worker.over]
        unexplained = self.stop is None and self.group.unexplained
        for worker in there:
            worker.gone = True
        for worker in unfinished:
            worker.killed &= not unexplained  # a living machine would have confirmed it: this one was gone before
            self._fail(worker, lost=f"was lost: {event.reason}", preempted=worker.rank in self._preemption.ranks)
        if unfinished:
            announced = all(worker.rank in self._preemption.ranks for worker in unfinished)
            self._end(self._preemption.left if announced else GRACE_AFTER_DEATH)

    def _fail(self, worker: Worker, **what: Any) -> Failure:
        """A worker ends before it has finished; others may have what it was to store."""
        failure = self.group.fail(worker, **what)
        self._checkpoints.lost(self.group, worker)
        return failure

    def asked_to_stop(self, event: on.StopAsked) -> None:
        """Stop at the next report, or now where that was said or nothing has been reported yet."""
        self.stop = event
        if event.kill or self.state is RunState.STARTING:
            self.kill()
        elif self.state is RunState.RUNNING:
            self._ending.ask(self.group, event.at)

    def timer(self, kind: str, detail: str) -> None:
        """A timer of this attempt has come."""
        if kind == "grace":
            self._kill_after_grace()
        elif kind == "start" and self.state is RunState.STARTING:
            phases = ", ".join(f"rank {rank}: {phase}" for rank, phase in self.group.phases().items())
            self._out.say(f"the worker group is not ready after {SLOW_START:.0f} s ({phases})", "warning")
        elif kind == "progress" and self.state is not RunState.ENDING:
            self._hang.check(self.group)
        elif kind == "agree":
            self._preemption.agree(self.group)
        elif kind == "preempted" and self.state is not RunState.ENDING:
            self._take_preempted_away()
        elif kind == "unkilled":
            self._leave_behind()
        elif kind == "stacks" and not self._hang.wait_for_native(self.group):
            self._end_hung_group()
        elif kind == "held":
            self._checkpoints.held(self.group, int(detail))

    def resize(self, reason: str) -> None:
        """End the group so that it can begin again with another number of workers."""
        if self.state is not RunState.ENDING and self.stop is None:
            self.resize_reason = reason
            self.kill()

    # ---- the end ----------------------------------------------------------------------------------------------------

    def kill(self) -> None:
        """End every worker now."""
        if self.state is not RunState.ENDING:
            self.state = self._take_step(Step.ENDING)
        self._ending.kill(self.group)

    def _kill_after_grace(self) -> None:
        """End what is left of the group, but not while it stores a checkpoint that needs none of the lost ranks."""
        storing = self.group.assembly.worth_waiting_for(w.rank for w in self.group.alive() if not w.over)
        if self.stop is None and storing and self._ending.extend(self.group):
            return
        self.kill()

    def _leave_behind(self) -> None:
        """Wait no longer for processes that SIGKILL does not end."""
        for worker in self.group.alive():
            if not worker.killed and not worker.over:
                continue
            self.host_lost = True  # what it holds of the machine, it still holds
            which = f"process {worker.pid}" if worker.pid else "its process"
            host = worker.placement.hostname
            self._out.say(
                f"rank {worker.rank} on {host} does not end: {which} has not reacted to SIGKILL for {KILL_LIMIT:g} s. "
                f"It hangs in the kernel (a dead disk, network mount or driver?) and is left behind; look at "
                f"/proc/{worker.pid or '<pid>'}/stack on {host}",
                "warning",
            )
            if not worker.over:
                self._fail(worker, lost=f"could not be ended: {which} does not react to SIGKILL")
            worker.gone = True

    def _end(self, grace: float) -> None:
        """Let the attempt end: who has finished may go, the rest is killed after ``grace`` seconds."""
        if self.state is not RunState.ENDING:
            self.state = self._take_step(Step.ENDING)
        self._ending.wave_off(self.group)
        self._ending.grace(self.group, grace)
        self.notify()

    def notify(self) -> None:
        """Tell callbacks and the display how the workers are; of many of them not at each step of each."""
        now, few = self._out.now, len(self.group.workers) <= FEW
        if not few and self._notified[0] is self.state and now - self._notified[1] < NOTIFY_EVERY:
            return
        self._notified = (self.state, now)
        self._out.emit(do.Notify(state=self.state, attempt=self.group.attempt, workers=self.group.phases()))

    _listeners: ClassVar[dict[type[FromWorker], Callable[[Attempt, Worker, Any], None]]] = {
        WorkerHello: _hello,
        Ready: _ready,
        Offer: _offer,
        Report: _report,
        Consult: _consult,
        Stored: _stored,
        Digests: _digests,
        AskCheckpoints: _asked_for_checkpoints,
        Finished: _finished,
        Failed: _failed,
        Left: _left,
        Stacks: _stacks,
        Preempted: _preempted,
        Calls: _calls,
        Alive: _alive,
    }
