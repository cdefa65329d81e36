"""The life of one run, decided without I/O: ``handle(event, now)`` returns the commands to carry out, in order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from shoal._core import commands as do
from shoal._core import events as on
from shoal._core.attempt import Attempt
from shoal._core.checkpoints import Checkpoints
from shoal._core.failure import Failure
from shoal._core.group import Group, Phase
from shoal._core.messages import Alive, Report
from shoal._core.names import stored_elsewhere
from shoal._core.outbox import Outbox
from shoal._core.records import AttemptEnded, AttemptStarted, History, RunEnded
from shoal._core.room import Room
from shoal._core.scaling import place
from shoal._core.spec import RunSpec
from shoal._core.states import Course, RunState, Step
from shoal._core.verdict import Verdict, judge

LEAVE_AT = 0.8  # of the grace: who has not saved and returned by then stops at its next report


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

    Attributes
    ----------
    leaving : str
        Why the run stops here and goes on in another process; empty if it does not.
    """

    def __init__(self, spec: RunSpec, history: History | None = None, last_row: Mapping[str, Any] | None = None):
        self.spec = spec
        self.history = history or History()
        self.attempt: Attempt | None = None
        self._earlier_row: dict[str, Any] = dict(last_row or {})
        self._slots: tuple[on.HostSlots, ...] = ()
        self._stop: on.StopAsked | None = None
        self.leaving = ""
        self._broken_storage = ""
        self._out = Outbox(self.history)
        self._checkpoints = Checkpoints(spec.checkpoint, self._out)
        self._room = Room(spec.request, spec.resize_interval)
        self._course = Course()

    @property
    def state(self) -> RunState:
        """Where the run stands."""
        return self._course.state

    @property
    def group(self) -> Group | None:
        """The workers of the last attempt that was started."""
        return self.attempt.group if self.attempt else None

    @property
    def last_row(self) -> dict[str, Any]:
        """The last report of rank 0."""
        return (self.attempt and self.attempt.row) or self._earlier_row

    def handle(self, event: on.Event, now: float) -> list[do.Command]:
        """Take one event at the time ``now`` (seconds of a clock that never goes back) and say what to do."""
        if self.state.final:
            return []
        self._out.now = now
        if not (isinstance(event, on.Heard) and isinstance(event.message, (Report, Alive))):
            self._course.note(now, _brief(event))
        self._handlers[type(event)](self, event)
        if self._live is not None and self._live.over and not self._only_scores_are_missing(self._live):
            self._conclude(self._live)
        return self._out.take()

    def _only_scores_are_missing(self, attempt: Attempt) -> bool:
        """Whether the function has finished on every rank, and checkpoints are still being scored."""
        done = attempt.group.every(Phase.FINISHED) and not (self._stop or self._broken_storage or attempt.informed)
        return done and not self._checkpoints.validations.idle

    # ---- the life of the run ----------------------------------------------------------------------------------------

    def _begin(self, event: on.Begin) -> None:
        self._out.wall_offset = event.wall - self._out.now
        self._out.persist(event.driver)
        self._checkpoints.validations.proceed()
        self._ask_for_room()
        self._notify()

    def _ask_for_room(self) -> None:
        """Ask for the largest group; after a while, whatever is there will do if it is no smaller than the smallest."""
        request = self.spec.request
        self._out.emit(self._room.ask(request.max_workers))
        if request.min_workers < request.max_workers:
            self._out.timer("room", self.spec.room_wait)

    def _acquired(self, event: on.Acquired) -> None:
        if event.ticket != self._room.ticket or self._room.granted:
            return  # an answer to what was asked for before
        self._room.granted = True
        self._slots = event.slots
        self._prepare_attempt()

    def _prepare_attempt(self) -> None:
        """Begin the next attempt once the newest checkpoint was looked at: every byte of it after a resume."""
        resumed = self.attempt is None
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
        self._course.step(Step.ACQUIRED)
        number = self.history.attempts[-1].number + 1 if self.history.attempts else 1
        if self.attempt is None and number > 1:
            self._finish_what_the_last_driver_began(number - 1)
        latest = self._checkpoints.latest
        group = Group(number, place(self._slots), latest.n if latest else 0, self.spec.renames)
        hosts = [worker.placement.hostname for worker in group.workers]
        self._out.persist(AttemptStarted(attempt=number, world_size=len(hosts), hosts=hosts, checkpoint=group.start))
        self._earlier_row = self.last_row
        trained = float(self._earlier_row.get("time_total_s", 0.0))
        self.attempt = Attempt(
            group, self.spec, self._checkpoints, self._out, self._course.step, trained_before=trained
        )
        self._room.taken(self._out.now)
        self.attempt.start()

    def _finish_what_the_last_driver_began(self, attempt: int) -> None:
        """Remove what it had to remove: it may have died between the journal and the deed."""
        self._discard(attempt)
        for name in sorted(name for name in self.history.deleted if not stored_elsewhere(name)):
            self._out.emit(do.DeleteCheckpoint(name=name))

    def _discard(self, attempt: int) -> None:
        self._out.emit(do.Discard(attempt=attempt, keep=tuple(c.name for c in self.history.checkpoints)))

    def _conclude(self, attempt: Attempt) -> None:
        """Every worker is gone: decide what follows."""
        group = attempt.group
        verdict = judge(
            group,
            self.spec.failure,
            self.history,
            stop=self._stop,
            resize=attempt.resize_reason,
            informed=attempt.informed,
            leaving=self.leaving,
            broken_storage=self._broken_storage,
        )
        self._discard(group.attempt)
        self._out.persist(
            AttemptEnded(
                attempt=group.attempt,
                reason=verdict.attempt_reason,
                reports=max(group.reports()),
                failures=verdict.failures,
                preempted=verdict.preempted,
            )
        )
        if verdict.step is Step.RESTART:
            self._restart(verdict)
        elif verdict.step is Step.RESIZE:
            self._out.say(verdict.attempt_reason)
            self._course.step(Step.RESIZE)
            self._notify()
            self._begin_again()
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
        self._course.step(Step.RESTART)
        self._notify()
        if verdict.wait:
            self._out.timer("backoff", verdict.wait)
        else:
            self._begin_again()

    def _begin_again(self) -> None:
        last = self.attempt
        if last and (last.host_lost or self.state is RunState.RESIZING or self._room.must_shrink(last.group)):
            self._out.emit(do.Release())
            self._ask_for_room()
        else:
            self._prepare_attempt()

    def _finish(self, step: Step, reason: str, failures: list[Failure] | None = None) -> None:
        self._course.step(step)
        self._out.persist(RunEnded(state=self.state.value, reason=reason))
        self._out.emit(do.Release())
        self._notify()
        self._out.emit(
            do.Finish(
                state=self.state,
                failures=tuple(failures or ()),
                reason=reason,
                value=self.attempt.value if self.attempt else None,
            )
        )

    # ---- what concerns the attempt that is going on -----------------------------------------------------------------

    @property
    def _live(self) -> Attempt | None:
        """The attempt that is going on; between attempts there is none."""
        return self.attempt if self.state in {RunState.STARTING, RunState.RUNNING, RunState.ENDING} else None

    def _heard(self, event: on.Heard) -> None:
        if self._live and event.attempt == self._live.group.attempt:
            self._live.heard(event)

    def _exited(self, event: on.Exited) -> None:
        if self._live and event.attempt == self._live.group.attempt:
            self._live.exited(event)

    def _native_stacks_read(self, event: on.NativeStacksRead) -> None:
        if self._live and event.attempt == self._live.group.attempt:
            self._live.native_stacks(event)

    def _lost(self, event: on.HostLost) -> None:
        if self.attempt:  # between attempts as well: the next one must not begin there
            self.attempt.lost(event)

    def _capacity_changed(self, event: on.CapacityChanged) -> None:
        if event.ticket != self._room.ticket:
            return
        self._room.possible = event.workers
        if self._live and self._room.must_shrink(self._live.group):
            self._live.resize(f"there is room for {event.workers} workers only; going on with what there is")

    def _commit_done(self, event: on.CommitDone) -> None:
        if not self._live:
            return
        self._checkpoints.committed(self._live.group, event.n)
        if self._room.may_grow(self._live.group, self._out.now):
            self._live.resize(f"there is room for {self._room.possible} workers; going on with more")

    def _validated(self, event: on.Validated) -> None:
        self._checkpoints.validated(event)

    def _storage_failed(self, event: on.StorageFailed) -> None:
        if self._broken_storage:
            return
        self._broken_storage = event.reason
        self._checkpoints.abandon()
        if self._live is None:
            self._finish(Step.GIVE_UP, event.reason)
        elif not self._live.over:
            self._live.kill()

    def _stop_asked(self, event: on.StopAsked) -> None:
        if self._stop and not event.kill:
            return
        self._stop = event
        if self._live is None:
            self._finish(Step.STOP, event.reason)
        else:
            self._live.asked_to_stop(event)

    def _engine_says(self, event: on.EngineSays) -> None:
        self._out.say(event.text, event.level)

    def _preempted(self, event: on.PreemptionNotice) -> None:
        """The run is to go on in another process: what there is of it is saved, and it stops in good time."""
        if event.host:
            if self.attempt:  # also between two attempts: the next one is not to begin there
                self.attempt.host_preempted(event)
            return
        if self.leaving or self._stop:
            return
        self.leaving = event.reason
        grace = max(event.grace, self.spec.failure.preemption_grace)
        self._out.say(f"{event.reason}; {grace:g} s are left to save a checkpoint", "warning")
        if self._live is None:
            self._finish(Step.STOP, event.reason)
            return
        self._live.all_preempted(grace)
        self._out.timer("leave", LEAVE_AT * grace)

    def _stacks_asked(self, event: on.StacksAsked) -> None:
        if self._live:
            self._live.stacks_asked()

    def _decided(self, event: on.Decided) -> None:
        if self._live:
            self._live.decided(event)

    def _timer(self, event: on.TimerFired) -> None:
        kind, _, rest = event.name.partition(":")
        number, _, detail = rest.partition(":")
        if kind == "backoff" and self.state is RunState.RESTARTING:
            self._begin_again()
        elif kind == "leave" and self._live is not None and not self._live.over:
            self._stop_asked(on.StopAsked(reason=self.leaving))
        elif kind == "room" and self._live is None and not self._room.granted:
            self._out.emit(self._room.ask(self.spec.request.min_workers))
        elif self._live and number == str(self._live.group.attempt):
            self._live.timer(kind, detail)

    # ---- small things -----------------------------------------------------------------------------------------------

    def _notify(self) -> None:
        group = self.group
        self._out.emit(
            do.Notify(
                state=self.state,
                attempt=group.attempt if group else 0,
                workers=group.phases() if group else {},
            )
        )

    _handlers: ClassVar[dict[type[on.Event], Callable[[Run, Any], None]]] = {
        on.Begin: _begin,
        on.Acquired: _acquired,
        on.CapacityChanged: _capacity_changed,
        on.Infeasible: _infeasible,
        on.Heard: _heard,
        on.Exited: _exited,
        on.NativeStacksRead: _native_stacks_read,
        on.HostLost: _lost,
        on.CommitDone: _commit_done,
        on.Inspected: _inspected,
        on.Validated: _validated,
        on.StorageFailed: _storage_failed,
        on.EngineSays: _engine_says,
        on.PreemptionNotice: _preempted,
        on.StopAsked: _stop_asked,
        on.Decided: _decided,
        on.StacksAsked: _stacks_asked,
        on.TimerFired: _timer,
    }


def _brief(event: on.Event) -> str:
    if isinstance(event, on.Heard):  # the most frequent ones, and some have much to say
        return f"Heard(attempt={event.attempt}, rank={event.rank}, {type(event.message).__name__})"
    text = repr(event)
    return text if len(text) <= 160 else text[:157] + "..."
