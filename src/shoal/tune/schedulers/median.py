"""Trials that are worse than the median of the others at the same time are ended."""

from __future__ import annotations

import math
import statistics
from typing import Any

from shoal._core.trials import Trial, Trials, TrialScheduler


class MedianStoppingRule(TrialScheduler):
    """Ends a trial whose best result so far is worse than the median of the running averages of the other trials.

    The running average of a trial at time ``t`` is the mean of its metric over its reports up to ``t``. Golovin et al.,
    *Google Vizier: A Service for Black-Box Optimization*, KDD 2017, section 3.2.2.

    Parameters
    ----------
    time_attr : str
        What time is measured in: a key of the reports that only grows.
    metric : str, optional
        The metric to decide by; the experiment's by default.
    mode : str, optional
        ``"max"`` or ``"min"``.
    grace_period : float
        Before this time nothing is ended.
    min_samples_required : int
        How many other trials there have to be for a median.
    min_time_slice : float
        How long a trial runs between two decisions at least.
    hard_stop : bool
        Whether a trial is ended. If not, it is paused, and goes on when no new one waits.
    """

    needs_metric = True

    def __init__(
        self,
        time_attr: str = "time_total_s",
        metric: str | None = None,
        mode: str | None = None,
        grace_period: float = 60.0,
        min_samples_required: int = 3,
        min_time_slice: float = 0,
        hard_stop: bool = True,
    ):
        super().__init__(metric, mode)
        if min_samples_required < 1:
            raise ValueError(f"min_samples_required={min_samples_required!r}: give 1 or more")
        self._time_attr = time_attr
        self._grace = grace_period
        self._least = min_samples_required
        self._slice = min_time_slice
        self._verdict = self.STOP if hard_stop else self.PAUSE
        self._scores: dict[str, list[tuple[float, float]]] = {}
        self._decided_at: dict[str, float] = {}

    def on_trial_result(self, tune_controller: Trials, trial: Trial, result: dict[str, Any]) -> str:
        time, own = float(result[self._time_attr]), self.score(result)
        scores = self._scores.setdefault(trial.trial_id, [])
        scores.append((time, own))
        if time < self._grace or time - self._decided_at.get(trial.trial_id, -math.inf) < self._slice:
            return self.CONTINUE
        others = [self._average(other, time) for other in self._scores if other != trial.trial_id]
        averages = [average for average in others if average is not None]
        if len(averages) < self._least:
            return self.CONTINUE
        self._decided_at[trial.trial_id] = time
        best = max(value for _, value in scores)
        return self._verdict if best < statistics.median(averages) or best == -math.inf else self.CONTINUE

    def _average(self, trial_id: str, time: float) -> float | None:
        """Return the mean of a trial's metric up to a time; ``None`` if it has no number up to then."""
        numbers = [value for at, value in self._scores[trial_id] if at <= time and value > -math.inf]
        return statistics.fmean(numbers) if numbers else None
