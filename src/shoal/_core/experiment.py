"""An experiment: which trials there are, which of them run, and when the search is over. Pure, and replayable."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from shoal._core import search as on
from shoal._core.commands import Command
from shoal._core.events import Event, PreemptionNotice, StopAsked, TimerFired
from shoal._core.metric_watch import MetricWatch
from shoal._core.outbox import SearchOutbox
from shoal._core.plain_data import is_plain, printable
from shoal._core.plug_ins import PlugInError, PlugIns
from shoal._core.records import Record
from shoal._core.search import Adopt, Decide, FinishSearch, StartTrial, StopTrial
from shoal._core.trials import Searcher, Stopper, Trial, TrialScheduler, TrialStatus
from shoal._core.wishes import Wishes

BUDGET_GRACE = 10.0  # seconds that trials have for their next report when the time is over


class SearchSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked of an experiment, as far as decisions depend on it.

    ``search_id`` begins every trial's identifier; ``num_samples`` is -1 for no end; ``time_budget`` is in seconds.
    """

    search_id: str
    metric: str | None = None
    mode: str | None = None
    num_samples: int = 1
    max_concurrent: int | None = None
    time_budget: float | None = None
    fail_fast: bool = False


class Experiment:
    """Asks the searcher, starts, stops, pauses, resumes and clones trials as the scheduler says, and ends.

    Parameters
    ----------
    spec : SearchSpec
        What was asked.
    searcher, scheduler, stopper
        They know metric, mode and space already.

    Attributes
    ----------
    table : TrialTable
        All trials.
    over : bool
        Whether it has said so.
    failure : BaseException or None
        What a plug-in raised, which ends the search.
    """

    def __init__(self, spec: SearchSpec, searcher: Searcher, scheduler: TrialScheduler, stopper: Stopper | None):
        self.spec = spec
        self.over = False
        self.failure: BaseException | None = None
        self._out = SearchOutbox()
        self._plug_ins = PlugIns(searcher, scheduler, stopper)
        self._wishes = Wishes(self._plug_ins, self._out)
        self.table = self._wishes.table
        self.decides = self._plug_ins.decides
        self._watch = MetricWatch(spec.metric or scheduler.metric or searcher.metric, spec.mode or scheduler.mode)
        self._room: int | None = None
        self._begun = False
        self._exhausted = False
        self._ending: tuple[str, str] | None = None
        self._handlers: dict[type[Event], Callable[[Any], None]] = {
            on.Begin: self._begin,
            on.TrialPlaced: self._placed,
            on.TrialReported: self._reported,
            on.TrialSaved: lambda event: self.table.saved(event.trial_id, event.n),
            on.TrialRestarted: lambda event: self.table.nothing_is_stored(event.trial_id),
            on.TrialEnded: self._ended,
            on.RoomChanged: self._room_changed,
            StopAsked: self._stop_asked,
            PreemptionNotice: self._preempted,
            TimerFired: self._timer,
        }

    @property
    def best(self) -> Trial | None:
        """The trial with the best report so far; ``None`` before the first."""
        return self.table.find(self._watch.best_trial)

    @property
    def best_value(self) -> float:
        """The best value of the metric so far."""
        return self._watch.best_value

    @property
    def metric(self) -> str | None:
        """The metric that is searched by: the experiment's, the scheduler's or the searcher's."""
        return self._watch.metric

    @property
    def mode(self) -> str:
        """``"max"`` or ``"min"``."""
        return self._watch.mode

    def handle(self, event: Event, now: float) -> list[Command]:
        """Take one event at the time ``now`` (seconds of a clock that never goes back) and say what to do."""
        if self.over:
            return []
        self._out.now = now
        try:
            self._handlers[type(event)](event)
            self._advance()
        except PlugInError as error:
            self._fail(error)
        return self._out.take()

    # ---- the past ---------------------------------------------------------------------------------------------------

    def replay(self, records: Iterable[Record]) -> None:
        """Take what an earlier driver has written down. Searcher, scheduler and stopper are asked the same again."""
        self._out.replaying = True
        wishes = self._wishes
        wished: dict[type[Record], Callable[[Any], None]] = {
            on.TrialCloned: wishes.cloned_before,
            on.TrialRemoved: wishes.removed_before,
            on.TrialReallocated: wishes.reallocated_before,
        }
        others: dict[type[Record], Callable[[Any], None]] = {
            on.TrialCreated: self._recreate,
            on.TrialStarted: lambda record: self.table.started(self.table[record.trial_id]),
            on.TrialResult: self._rejudge,
            on.TrialOver: lambda record: self._close(self.table[record.trial_id], record.status, record.error),
            on.SearchStarted: lambda record: self.table.take_over(record.resumption),
            on.SearchEnded: lambda record: None,
        }
        for record in records:
            if type(record) in others:
                wishes.forget()
            self._exhausted = isinstance(record, on.SearchEnded) and record.state == "FINISHED"
            (others.get(type(record)) or wished[type(record)])(record)
        self._out.take()
        self._out.replaying = False

    def _recreate(self, record: on.TrialCreated) -> None:
        config = self._plug_ins.suggested_before(record.trial_id, record.config)
        self._add(Trial(record.trial_id, config))

    def _rejudge(self, record: on.TrialResult) -> None:
        trial = self.table[record.trial_id]
        self._judge(trial, record)
        self._take_result(trial, record)

    # ---- events -----------------------------------------------------------------------------------------------------

    def _begin(self, event: on.Begin) -> None:
        self._begun = True
        self._out.wall_offset = event.wall - self._out.now
        self._out.persist(on.SearchStarted(driver=event.driver, resumption=event.resumption))
        self._wishes.grant_what_is_open()
        self.table.take_over(event.resumption)
        if self.spec.time_budget is not None:
            self._out.timer("budget", self.spec.time_budget)

    def _placed(self, event: on.TrialPlaced) -> None:
        self.table.placed(event.trial_id)

    def _room_changed(self, event: on.RoomChanged) -> None:
        self._room = event.trials
        self.table.total_resources = event.resources or self.table.total_resources

    def _reported(self, event: on.TrialReported) -> None:
        trial = self.table[event.trial_id]
        self.table.saves(trial, event.n, event.saved)
        if trial.status is not TrialStatus.RUNNING or event.n <= trial.reports:
            self._answer(trial, event.n, "")  # made again after a restart: what follows was decided then
            return
        before = len(self._out)
        try:
            verdict, by = self._judge(trial, event)
        except PlugInError as error:
            self._answer(trial, event.n, str(error))  # it waits for an answer, whatever comes
            raise
        record = on.TrialResult(
            trial_id=trial.trial_id, n=event.n, row=event.row, saved=event.saved, verdict=verdict, by=by
        )
        # The journal has the report before what the scheduler has said to do about it.
        self._out.persist(record, before)
        warning = self._watch.look(trial, event.row)
        if warning:
            self._out.say(warning, "warning")
        self._take_result(trial, record)
        self._answer(trial, event.n, by if verdict != TrialScheduler.CONTINUE else "")
        self._out.updated(trial.trial_id, "result")
        if self._ending is None and (by := self._plug_ins.ended_by()):
            self._end(f"{by} ended the search")

    def _judge(self, trial: Trial, report: on.TrialReported | on.TrialResult) -> tuple[str, str]:
        """Return what becomes of a trial that has reported this, and who says so."""
        trial.last_result = report.row
        if report.saved:
            trial.saved_at = report.n
        self._wishes.cloned = False
        verdict, by = self._plug_ins.judge(self.table, trial, report.row, self._watch.concerns(report.row))
        goes_on_otherwise = self._wishes.cloned or trial.trial_id in self.table.adoptions
        if by == self._plug_ins.scheduler_name and goes_on_otherwise:
            return TrialScheduler.PAUSE, by
        return verdict, by

    def _take_result(self, trial: Trial, record: on.TrialResult) -> None:
        trial.last_result, trial.reports = record.row, record.n
        self.table.adopting.pop(trial.trial_id, None)  # it has gone on from what it was given
        self._watch.take(trial, record.row)
        if record.verdict == TrialScheduler.PAUSE:
            trial.status = TrialStatus.PAUSED
        elif record.verdict == TrialScheduler.STOP:
            self.table.end(trial, TrialStatus.TERMINATED)
            self._plug_ins.completed(self.table, trial, by_scheduler=record.by == self._plug_ins.scheduler_name)

    def _ended(self, event: on.TrialEnded) -> None:
        trial = self.table[event.trial_id]
        status, error = self._status_after(trial, event)
        self._out.persist(on.TrialOver(trial_id=trial.trial_id, status=status.value, error=error))
        self._close(trial, status.value, error)
        self._out.updated(trial.trial_id, status.value.lower())
        if status is TrialStatus.ERROR and self.spec.fail_fast:
            self._end(f"trial {trial.trial_id} failed, and fail_fast is set", state="FAILED")
        never = self._watch.never_reported(trial, event.completed)
        if never:
            self._fail(PlugInError(never))

    def _status_after(self, trial: Trial, event: on.TrialEnded) -> tuple[TrialStatus, str]:
        """Return a trial's status after its process is gone, and its error."""
        if trial.status is TrialStatus.TERMINATED:
            if event.error:
                self._out.say(f"trial {trial.trial_id} failed while it was being ended: {event.error}", "warning")
            return trial.status, ""
        if event.error:
            return TrialStatus.ERROR, event.error
        if event.completed or (self._ending and self._ending[1].startswith("time_budget_s")):
            return TrialStatus.TERMINATED, ""
        return TrialStatus.PAUSED, ""

    def _close(self, trial: Trial, status: str, error: str) -> None:
        """The run of a trial is over."""
        self.table.process_is_gone(trial)
        before, after = trial.status, TrialStatus(status)
        if before is TrialStatus.TERMINATED:
            return
        trial.error = error
        if after is TrialStatus.PAUSED:
            if before is TrialStatus.RUNNING:
                self.table.first(trial)  # nobody has paused it: it was interrupted
            trial.status = after
        else:
            self.table.end(trial, after)
            self._plug_ins.completed(self.table, trial)

    def _stop_asked(self, event: StopAsked) -> None:
        self._end(event.reason, state="STOPPED")
        if event.kill:
            self._stop_all_trials(event.reason, kill=True)

    def _preempted(self, event: PreemptionNotice) -> None:
        """The search goes on in another process: trials save what they have, and stop in good time."""
        if self._ending is None:
            self._ending = ("STOPPED", event.reason)
            self._stop_all_trials(event.reason, grace=event.grace)

    def _timer(self, event: TimerFired) -> None:
        if event.name == "budget" and self._ending is None:
            self._end(f"time_budget_s={self.spec.time_budget:g} is over")
            self._out.timer("budget grace", BUDGET_GRACE)
        elif event.name == "budget grace":
            self._stop_all_trials("they made no report after the time budget was over", kill=True)

    # ---- what is next -----------------------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Start what can be started, and see whether all is done."""
        if not self._begun:
            return
        suggested = True
        while self._ending is None and self.table.unplaced is None and self.table.running < self._limit():
            trial = self._next()
            if trial is None:
                suggested = False
                break
            self._start(trial)
        if not self.over and not self.table.running:
            self._conclude(nothing_to_start=not suggested)

    def _limit(self) -> float:
        limits = [limit for limit in (self.spec.max_concurrent, self._room) if limit is not None]
        return min(limits, default=math.inf)

    def _next(self) -> Trial | None:
        """Return the trial that is to be started now."""
        ahead, name = self._plug_ins.ahead, self._plug_ins.scheduler_name
        if ahead and self.spec.num_samples < 0:
            raise PlugInError(f"{name} makes all trials before the first one runs: give num_samples")
        while ahead and self._suggest():
            pass
        urgent = self.table.next_of_first()
        if urgent is not None:
            return urgent
        chosen = self._plug_ins.choose(self.table)
        if chosen is not None:
            return chosen if self.table.is_waiting(chosen) else None
        return self._suggest()

    def _suggest(self) -> Trial | None:
        """Make a trial of what the searcher suggests."""
        spec, count = self.spec, len(self.table.get_trials())
        if not self._plug_ins.counts_samples and 0 <= spec.num_samples <= count:
            self._exhausted = True
        if self._exhausted:
            return None
        trial_id = f"{spec.search_id}_{count:05d}"
        config = self._plug_ins.suggest(trial_id)
        if config == Searcher.FINISHED:
            self._exhausted = True
        if not isinstance(config, dict):
            return None
        self._out.persist(on.TrialCreated(trial_id=trial_id, config=printable(config), plain=is_plain(config)))
        trial = self._add(Trial(trial_id, config))
        self._out.updated(trial_id, "created")
        return trial

    def _add(self, trial: Trial) -> Trial:
        self.table.add(trial)
        self._plug_ins.added(self.table, trial)
        return trial

    def _start(self, trial: Trial) -> None:
        self._out.persist(on.TrialStarted(trial_id=trial.trial_id))
        adoption = self.table.adoptions.get(trial.trial_id)
        if adoption is not None:
            self._out.emit(Adopt(trial_id=trial.trial_id, source_id=adoption.source_id, n=adoption.n))
        self._out.emit(StartTrial(trial_id=trial.trial_id, anew=not trial.started_before))
        self.table.started(trial)
        self._out.updated(trial.trial_id, "started")

    def _conclude(self, nothing_to_start: bool) -> None:
        """No trial has a process: the search is over, or the plug-ins do not know what they want."""
        if self._ending is not None:
            self._finish(*self._ending)
        elif nothing_to_start and self._plug_ins.let_go_of_waiting(self.table):
            self._advance()
        elif nothing_to_start and self.table.get_waiting_trials():
            waiting = ", ".join(trial.trial_id for trial in self.table.get_waiting_trials()[:5])
            name = self._plug_ins.scheduler_name
            raise PlugInError(f"{name} lets none of the waiting trials run, while no other runs: {waiting}")
        elif nothing_to_start:
            if not self._exhausted:
                self._out.say(f"{self._plug_ins.searcher_name} suggests nothing more while no trial runs", "warning")
            self._finish("FINISHED", "")

    # ---- the end ----------------------------------------------------------------------------------------------------

    def _end(self, reason: str, state: str = "FINISHED") -> None:
        """Start nothing more, and stop what runs."""
        if self._ending is not None:
            return
        self._ending = (state, reason)
        self._stop_all_trials(reason)

    def _stop_all_trials(self, reason: str, kill: bool = False, grace: float = 0.0) -> None:
        for trial_id in self.table.with_process():
            self._out.emit(StopTrial(trial_id=trial_id, reason=reason, kill=kill, grace=grace))

    def _fail(self, error: PlugInError) -> None:
        """A plug-in cannot go on: end the search, and keep what there is."""
        self.failure = self.failure or error
        self._ending = ("FAILED", str(error))
        self._stop_all_trials("the search failed")
        if not self.table.running:
            self._finish(*self._ending)

    def _finish(self, state: str, reason: str) -> None:
        self._out.persist(on.SearchEnded(state=state, reason=reason))
        self._out.emit(FinishSearch(state=state, reason=reason))
        self.over = True

    def _answer(self, trial: Trial, n: int, stop: str) -> None:
        if self.decides:
            self._out.emit(Decide(trial_id=trial.trial_id, n=n, stop=stop))
