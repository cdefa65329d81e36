"""An experiment: which trials there are, which of them run, and when the search is over. Pure, and replayable."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import msgspec

from shoal._core import search as on
from shoal._core.commands import Command, Say, SetTimer
from shoal._core.events import Event, PreemptionNotice, StopAsked, TimerFired
from shoal._core.metric_watch import MetricWatch
from shoal._core.plain_data import is_plain, printable
from shoal._core.records import Record
from shoal._core.search import Adopt, Decide, FinishSearch, StartTrial, StopTrial, Updated
from shoal._core.trial_table import Adoption, TrialTable
from shoal._core.trials import Searcher, Stopper, Trial, TrialScheduler, TrialStatus

T = TypeVar("T")
BUDGET_GRACE = 10.0  # seconds that trials have for their next report when the time is over
VERDICTS = frozenset({TrialScheduler.CONTINUE, TrialScheduler.PAUSE, TrialScheduler.STOP, TrialScheduler.NOOP})


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


class PlugInError(Exception):
    """A searcher, a scheduler or a stopper raised; ``__cause__`` is what."""


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
        self.table = TrialTable(self._clone, self._remove, self._reallocate)
        self.over = False
        self.failure: BaseException | None = None
        self.decides = scheduler.decides or stopper is not None
        self._searcher, self._scheduler, self._stopper = searcher, scheduler, stopper
        self._watch = MetricWatch(spec.metric or scheduler.metric or searcher.metric, spec.mode or scheduler.mode)
        self._commands: list[Command] = []
        self._now = 0.0
        self._wall_offset = 0.0
        self._replaying = False
        self._wanted: dict[str, Callable[[], None]] = {}
        self._clones: dict[str, dict[str, Any]] = {}
        self._cloned_now = False
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
        self._now = now
        try:
            self._handlers[type(event)](event)
            self._advance()
        except PlugInError as error:
            self._fail(error)
        commands, self._commands = self._commands, []
        return commands

    # ---- the past ---------------------------------------------------------------------------------------------------

    def replay(self, records: Iterable[Record]) -> None:
        """Take what an earlier driver has written down. Searcher, scheduler and stopper are asked the same again."""
        self._replaying = True
        applies: dict[type[Record], Callable[[Any], None]] = {
            on.TrialCreated: self._recreate,
            on.TrialStarted: lambda record: self._mark_started(self.table[record.trial_id]),
            on.TrialResult: self._rejudge,
            on.TrialCloned: self._reclone,
            on.TrialRemoved: self._reremove,
            on.TrialReallocated: lambda record: self._set_resources(self.table[record.trial_id], record.resources),
            on.TrialOver: lambda record: self._close(self.table[record.trial_id], record.status, record.error),
            on.SearchStarted: lambda record: self._take_over(record.resumption),
            on.SearchEnded: lambda record: None,
        }
        for record in records:
            if not isinstance(record, (on.TrialCloned, on.TrialRemoved, on.TrialReallocated)):
                self._wanted.clear()
                self._clones.clear()
            self._exhausted = isinstance(record, on.SearchEnded) and record.state == "FINISHED"
            applies[type(record)](record)
        self._replaying = False
        self._commands.clear()

    def _recreate(self, record: on.TrialCreated) -> None:
        config = self._ask(self._searcher.suggested_before, record.trial_id, record.config)
        self._add(Trial(record.trial_id, config))

    def _rejudge(self, record: on.TrialResult) -> None:
        trial = self.table[record.trial_id]
        self._judge(trial, record)
        self._take_result(trial, record)

    def _reremove(self, record: on.TrialRemoved) -> None:
        self._wanted.pop(record.trial_id, None)
        trial = self.table[record.trial_id]
        self._end_trial(trial, TrialStatus.TERMINATED)
        self._complete(trial, by_scheduler=True)

    def _reclone(self, record: on.TrialCloned) -> None:
        self._wanted.pop(record.trial_id, None)
        again = self._clones.pop(record.trial_id, None)
        same = again is not None and printable(again) == record.config
        source = Adoption(record.source_id, record.n)
        self._set_clone(self.table[record.trial_id], source, again if same and again else record.config)

    def _take_over(self, resumption: on.Resumption) -> None:
        """Decide what becomes of trials that the last driver has left, or that had failed."""
        self.table.all_processes_are_gone()
        for trial in self.table.get_trials():
            if trial.status is TrialStatus.ERROR and (resumption.errored or resumption.restart_errored):
                trial.error = ""
                trial.started_before = trial.started_before and not resumption.restart_errored
                if resumption.restart_errored:
                    trial.reports = trial.saved_at = 0
                self.table.revive(trial)
            elif trial.finished:
                continue
            elif resumption.unfinished:
                if trial.status is TrialStatus.RUNNING:
                    trial.status = TrialStatus.PENDING
                    self.table.first(trial)
            else:
                self._end_trial(trial, TrialStatus.TERMINATED)

    # ---- events -----------------------------------------------------------------------------------------------------

    def _begin(self, event: on.Begin) -> None:
        self._begun = True
        self._wall_offset = event.wall - self._now
        self._persist(on.SearchStarted(driver=event.driver, resumption=event.resumption))
        for wish in list(self._wanted.values()):
            wish()  # the last driver died before it had written this down
        self._wanted.clear()
        self._take_over(event.resumption)
        if self.spec.time_budget is not None:
            self._commands.append(SetTimer(name="budget", at=self._now + self.spec.time_budget))

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
        before = len(self._commands)
        try:
            verdict, by = self._judge(trial, event)
        except PlugInError as error:
            self._answer(trial, event.n, str(error))  # it waits for an answer, whatever comes
            raise
        record = on.TrialResult(
            trial_id=trial.trial_id, n=event.n, row=event.row, saved=event.saved, verdict=verdict, by=by
        )
        # The journal has the report before what the scheduler has said to do about it.
        self._commands.insert(before, on.PersistSearch(record=self._dated(record)))
        warning = self._watch.look(trial, event.row)
        if warning:
            self._say(warning, "warning")
        self._take_result(trial, record)
        self._answer(trial, event.n, by if verdict != TrialScheduler.CONTINUE else "")
        self._commands.append(Updated(trial_id=trial.trial_id, what="result"))
        if self._ending is None and self._stopper is not None and self._ask(self._stopper.stop_all):
            self._end(f"{type(self._stopper).__name__} ended the search")

    def _judge(self, trial: Trial, report: on.TrialReported | on.TrialResult) -> tuple[str, str]:
        """Return what becomes of a trial that has reported this, and who says so."""
        trial.last_result = row = report.row
        if report.saved:
            trial.saved_at = report.n
        self._ask(self._searcher.on_trial_result, trial.trial_id, row)
        if self._stopper is not None and self._ask(self._stopper, trial.trial_id, row):
            return TrialScheduler.STOP, type(self._stopper).__name__
        if not self._watch.concerns(row):
            return TrialScheduler.CONTINUE, ""
        self._cloned_now = False
        verdict = self._ask(self._scheduler.on_trial_result, self.table, trial, row)
        by = type(self._scheduler).__name__
        if verdict not in VERDICTS:
            raise PlugInError(f"{by}.on_trial_result returned {verdict!r}; it can return {', '.join(sorted(VERDICTS))}")
        if self._cloned_now or trial.trial_id in self.table.adoptions:
            return TrialScheduler.PAUSE, by
        return (TrialScheduler.CONTINUE if verdict == TrialScheduler.NOOP else verdict), by

    def _take_result(self, trial: Trial, record: on.TrialResult) -> None:
        trial.last_result, trial.reports = record.row, record.n
        self.table.adopting.pop(trial.trial_id, None)  # it has gone on from what it was given
        self._watch.take(trial, record.row)
        if record.verdict == TrialScheduler.PAUSE:
            trial.status = TrialStatus.PAUSED
        elif record.verdict == TrialScheduler.STOP:
            self._end_trial(trial, TrialStatus.TERMINATED)
            self._complete(trial, by_scheduler=record.by == type(self._scheduler).__name__)

    def _ended(self, event: on.TrialEnded) -> None:
        trial = self.table[event.trial_id]
        status, error = self._status_after(trial, event)
        self._persist(on.TrialOver(trial_id=trial.trial_id, status=status.value, error=error))
        self._close(trial, status.value, error)
        self._commands.append(Updated(trial_id=trial.trial_id, what=status.value.lower()))
        if status is TrialStatus.ERROR and self.spec.fail_fast:
            self._end(f"trial {trial.trial_id} failed, and fail_fast is set", state="FAILED")
        never = self._watch.never_reported(trial, event.completed)
        if never:
            self._fail(PlugInError(never))

    def _status_after(self, trial: Trial, event: on.TrialEnded) -> tuple[TrialStatus, str]:
        """Return a trial's status after its process is gone, and its error."""
        if trial.status is TrialStatus.TERMINATED:
            if event.error:
                self._say(f"trial {trial.trial_id} failed while it was being ended: {event.error}", "warning")
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
            self._end_trial(trial, after)
            self._complete(trial)

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
            self._commands.append(SetTimer(name="budget grace", at=self._now + BUDGET_GRACE))
        elif event.name == "budget grace":
            self._stop_all_trials("they made no report after the time budget was over", kill=True)

    # ---- what schedulers ask for ------------------------------------------------------------------------------------

    def _clone(self, trial: Trial, source: Trial, config: dict[str, Any]) -> None:
        if self._replaying:
            self._clones[trial.trial_id] = dict(config)
            self._wanted[trial.trial_id] = lambda: self._clone(trial, source, config)
            return
        adoption = Adoption(source.trial_id, source.saved_at)
        kept = {"config": printable(config), "plain": is_plain(config)}
        self._persist(on.TrialCloned(trial_id=trial.trial_id, source_id=source.trial_id, n=adoption.n, **kept))
        self._set_clone(trial, adoption, dict(config))
        self._commands.append(Updated(trial_id=trial.trial_id, what="cloned"))

    def _set_clone(self, trial: Trial, adoption: Adoption, config: dict[str, Any]) -> None:
        trial.config = config
        self._cloned_now = True
        self.table.adoptions[trial.trial_id] = adoption
        if self.table.has_process(trial):
            self.table.first(trial)

    def _remove(self, trial: Trial) -> None:
        if trial.finished:
            return
        if self._replaying:
            self._wanted[trial.trial_id] = lambda: self._remove(trial)
            return
        self._persist(on.TrialRemoved(trial_id=trial.trial_id))
        self._end_trial(trial, TrialStatus.TERMINATED)
        self._complete(trial, by_scheduler=True)
        if self.table.has_process(trial):
            self._commands.append(StopTrial(trial_id=trial.trial_id, reason="the scheduler ended it"))
        self._commands.append(Updated(trial_id=trial.trial_id, what="terminated"))

    def _reallocate(self, trial: Trial, resources: dict[str, float]) -> None:
        if self._replaying:
            self._wanted[trial.trial_id] = lambda: self._reallocate(trial, resources)
            return
        self._persist(on.TrialReallocated(trial_id=trial.trial_id, resources=resources))
        self._set_resources(trial, resources)

    def _set_resources(self, trial: Trial, resources: dict[str, float]) -> None:
        self._wanted.pop(trial.trial_id, None)
        trial.resources = resources
        if self.table.has_process(trial):
            self.table.first(trial)

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
        if self._scheduler.ahead and self.spec.num_samples < 0:
            name = type(self._scheduler).__name__
            raise PlugInError(f"{name} makes all trials before the first one runs: give num_samples")
        while self._scheduler.ahead and self._suggest():
            pass
        urgent = self.table.next_of_first()
        if urgent is not None:
            return urgent
        chosen = self._ask(self._scheduler.choose_trial_to_run, self.table)
        if chosen is not None:
            return chosen if self.table.is_waiting(chosen) else None
        return self._suggest()

    def _suggest(self) -> Trial | None:
        """Make a trial of what the searcher suggests."""
        spec, count = self.spec, len(self.table.get_trials())
        if not self._searcher.counts_samples and 0 <= spec.num_samples <= count:
            self._exhausted = True
        if self._exhausted:
            return None
        trial_id = f"{spec.search_id}_{count:05d}"
        config = self._ask(self._searcher.suggest, trial_id)
        if config == Searcher.FINISHED:
            self._exhausted = True
        if not isinstance(config, dict):
            return None
        self._persist(on.TrialCreated(trial_id=trial_id, config=printable(config), plain=is_plain(config)))
        trial = self._add(Trial(trial_id, config))
        self._commands.append(Updated(trial_id=trial_id, what="created"))
        return trial

    def _add(self, trial: Trial) -> Trial:
        self.table.add(trial)
        self._ask(self._scheduler.on_trial_add, self.table, trial)
        return trial

    def _start(self, trial: Trial) -> None:
        self._persist(on.TrialStarted(trial_id=trial.trial_id))
        adoption = self.table.adoptions.get(trial.trial_id)
        if adoption is not None:
            self._commands.append(Adopt(trial_id=trial.trial_id, source_id=adoption.source_id, n=adoption.n))
        self._commands.append(StartTrial(trial_id=trial.trial_id, anew=not trial.started_before))
        self._mark_started(trial)
        self._commands.append(Updated(trial_id=trial.trial_id, what="started"))

    def _mark_started(self, trial: Trial) -> None:
        adoption = self.table.adoptions.pop(trial.trial_id, None)
        if adoption is not None and adoption.source_id != trial.trial_id:
            trial.saved_at = max(trial.reports, 1)  # it is given that checkpoint as one of its own
            self.table.adopting[trial.trial_id] = adoption
        self.table.started(trial)
        trial.status, trial.started_before = TrialStatus.RUNNING, True

    def _conclude(self, nothing_to_start: bool) -> None:
        """No trial has a process: the search is over, or the plug-ins do not know what they want."""
        if self._ending is not None:
            self._finish(*self._ending)
        elif nothing_to_start and self._let_go_of_waiting():
            self._advance()
        elif nothing_to_start and self.table.get_waiting_trials():
            waiting = ", ".join(trial.trial_id for trial in self.table.get_waiting_trials()[:5])
            name = type(self._scheduler).__name__
            raise PlugInError(f"{name} lets none of the waiting trials run, while no other runs: {waiting}")
        elif nothing_to_start:
            if not self._exhausted:
                self._say(f"{type(self._searcher).__name__} suggests nothing more while no trial runs", "warning")
            self._finish("FINISHED", "")

    def _let_go_of_waiting(self) -> bool:
        """Let the scheduler end what waits for nothing; return whether it has."""
        before = len(self.table.get_waiting_trials())
        if before:
            self._ask(self._scheduler.on_no_available_trials, self.table)
        return len(self.table.get_waiting_trials()) < before

    # ---- the end ----------------------------------------------------------------------------------------------------

    def _end(self, reason: str, state: str = "FINISHED") -> None:
        """Start nothing more, and stop what runs."""
        if self._ending is not None:
            return
        self._ending = (state, reason)
        self._stop_all_trials(reason)

    def _stop_all_trials(self, reason: str, kill: bool = False, grace: float = 0.0) -> None:
        for trial_id in self.table.with_process():
            self._commands.append(StopTrial(trial_id=trial_id, reason=reason, kill=kill, grace=grace))

    def _fail(self, error: PlugInError) -> None:
        """A plug-in cannot go on: end the search, and keep what there is."""
        self.failure = self.failure or error
        self._ending = ("FAILED", str(error))
        self._stop_all_trials("the search failed")
        if not self.table.running:
            self._finish(*self._ending)

    def _finish(self, state: str, reason: str) -> None:
        self._persist(on.SearchEnded(state=state, reason=reason))
        self._commands.append(FinishSearch(state=state, reason=reason))
        self.over = True

    # ---- small things -----------------------------------------------------------------------------------------------

    def _end_trial(self, trial: Trial, status: TrialStatus) -> None:
        trial.status = status
        self.table.ended(trial)

    def _complete(self, trial: Trial, by_scheduler: bool = False) -> None:
        """Tell searcher and scheduler that a trial has ended; who has ended it knows."""
        failed = trial.status is TrialStatus.ERROR
        self._ask(self._searcher.on_trial_complete, trial.trial_id, trial.last_result or None, failed)
        if failed:
            self._ask(self._scheduler.on_trial_error, self.table, trial)
        elif by_scheduler:
            self._ask(self._scheduler.on_trial_remove, self.table, trial)
        else:
            self._ask(self._scheduler.on_trial_complete, self.table, trial, trial.last_result)

    def _answer(self, trial: Trial, n: int, stop: str) -> None:
        if self.decides:
            self._commands.append(Decide(trial_id=trial.trial_id, n=n, stop=stop))

    def _ask(self, method: Callable[..., T], *arguments: Any) -> T:
        """Call a plug-in; what it raises ends the search."""
        try:
            return method(*arguments)
        except PlugInError:
            raise
        except Exception as error:
            owner = getattr(method, "__self__", method)
            name = getattr(method, "__name__", "__call__")
            what = f"{type(owner).__name__}.{name} raised {type(error).__name__}: {error}"
            raise PlugInError(what) from error

    def _persist(self, record: Record) -> None:
        if not self._replaying:
            self._commands.append(on.PersistSearch(record=self._dated(record)))

    def _dated(self, record: Record) -> Record:
        return msgspec.structs.replace(record, at=self._now + self._wall_offset)

    def _say(self, text: str, level: str = "info") -> None:
        self._commands.append(Say(text=text, level=level))
