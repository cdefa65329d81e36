"""The searcher, scheduler and stopper of an experiment, which others have written: what they raise ends the search."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from shoal._core.trials import Searcher, Stopper, Trial, Trials, TrialScheduler, TrialStatus

T = TypeVar("T")
VERDICTS = frozenset({TrialScheduler.CONTINUE, TrialScheduler.PAUSE, TrialScheduler.STOP, TrialScheduler.NOOP})


class PlugInError(Exception):
    """A searcher, a scheduler or a stopper raised; ``__cause__`` is what."""


class PlugIns:
    """Asks and tells them in the order that they expect.

    Attributes
    ----------
    decides : bool
        Whether a report waits for what they say.
    ahead : bool
        Whether all trials are to be made before the first one runs.
    counts_samples : bool
        Whether the searcher ends by itself.
    searcher_name, scheduler_name : str
        What they are called in messages and in the journal.
    """

    def __init__(self, searcher: Searcher, scheduler: TrialScheduler, stopper: Stopper | None):
        self._searcher, self._scheduler, self._stopper = searcher, scheduler, stopper
        self.decides = scheduler.decides or stopper is not None
        self.searcher_name, self.scheduler_name = type(searcher).__name__, type(scheduler).__name__

    @property
    def ahead(self) -> bool:
        return self._scheduler.ahead

    @property
    def counts_samples(self) -> bool:
        return self._searcher.counts_samples

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        """Return a configuration for a new trial, as a searcher does."""
        return _ask(self._searcher.suggest, trial_id)

    def suggested_before(self, trial_id: str, config: dict[str, Any]) -> dict[str, Any]:
        """Return the configuration that an earlier driver was given, with the objects that were in it."""
        return _ask(self._searcher.suggested_before, trial_id, config)

    def added(self, trials: Trials, trial: Trial) -> None:
        """There is a new trial."""
        _ask(self._scheduler.on_trial_add, trials, trial)

    def judge(self, trials: Trials, trial: Trial, row: dict[str, Any], concerns: bool) -> tuple[str, str]:
        """Return what becomes of a trial that has reported this, and who says so.

        The scheduler is asked only where the row concerns it.
        """
        _ask(self._searcher.on_trial_result, trial.trial_id, row)
        if self._stopper is not None and _ask(self._stopper, trial.trial_id, row):
            return TrialScheduler.STOP, type(self._stopper).__name__
        if not concerns:
            return TrialScheduler.CONTINUE, ""
        verdict, by = _ask(self._scheduler.on_trial_result, trials, trial, row), self.scheduler_name
        if verdict not in VERDICTS:
            raise PlugInError(f"{by}.on_trial_result returned {verdict!r}; it can return {', '.join(sorted(VERDICTS))}")
        return (TrialScheduler.CONTINUE if verdict == TrialScheduler.NOOP else verdict), by

    def ended_by(self) -> str:
        """Return who ends the whole search now; nothing if nobody does."""
        ends = self._stopper is not None and _ask(self._stopper.stop_all)
        return type(self._stopper).__name__ if ends else ""

    def completed(self, trials: Trials, trial: Trial, by_scheduler: bool = False) -> None:
        """Tell searcher and scheduler that a trial has ended; who has ended it knows."""
        failed = trial.status is TrialStatus.ERROR
        _ask(self._searcher.on_trial_complete, trial.trial_id, trial.last_result or None, failed)
        if failed:
            _ask(self._scheduler.on_trial_error, trials, trial)
        elif by_scheduler:
            _ask(self._scheduler.on_trial_remove, trials, trial)
        else:
            _ask(self._scheduler.on_trial_complete, trials, trial, trial.last_result)

    def choose(self, trials: Trials) -> Trial | None:
        """Return which waiting trial is to run next."""
        return _ask(self._scheduler.choose_trial_to_run, trials)

    def let_go_of_waiting(self, trials: Trials) -> bool:
        """Let the scheduler end what waits for nothing; return whether it has."""
        before = len(trials.get_waiting_trials())
        if before:
            _ask(self._scheduler.on_no_available_trials, trials)
        return len(trials.get_waiting_trials()) < before


def _ask(method: Callable[..., T], *arguments: Any) -> T:
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
