"""Asynchronous successive halving: trials that are among the worse of those that came as far are ended early."""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from typing import Any

from shoal._core.trials import Trial, Trials, TrialScheduler


class AsyncHyperBandScheduler(TrialScheduler):
    """Ends a trial at a rung if it is not among the best of those that have been there before it.

    Rungs lie at ``grace_period * reduction_factor ** k`` below ``max_t``. A trial that comes to a rung goes on if its
    metric reaches the ``1 - 1 / reduction_factor`` quantile (linear between neighbours) of what earlier trials had
    there; the first one always does. It decides at the first report at or beyond the rung, once a rung. Nobody waits
    for anybody. A metric that is missing, ``None`` or NaN at a rung is worse than every number, and ends the trial.

    With several ``brackets``, new trials are shared out among them; the rungs of bracket ``s`` begin
    ``reduction_factor ** s`` later, so that it is the more patient the higher its number.

    Li et al., *A System for Massively Parallel Hyperparameter Tuning*, MLSys 2020 (the variant that stops; trials that
    are to be promoted later need not be kept).

    Parameters
    ----------
    time_attr : str
        What a rung is measured in: a key of the reports that only grows.
    metric : str, optional
        The metric to decide by; the experiment's by default.
    mode : str, optional
        ``"max"`` or ``"min"``.
    max_t : float
        Where a trial ends in any case.
    grace_period : float
        The first rung: nothing is ended before.
    reduction_factor : float
        Of how many trials one goes on.
    brackets : int
        How many series of rungs there are.
    stop_last_trials : bool
        Whether trials end at ``max_t``; if not, they end when their function does.

    Examples
    --------
    >>> from shoal.tune.schedulers import ASHAScheduler
    >>> ASHAScheduler(metric="loss", mode="min", max_t=100, reduction_factor=3).rungs
    [[1, 3, 9, 27, 81]]
    """

    needs_metric = True

    def __init__(
        self,
        time_attr: str = "training_iteration",
        metric: str | None = None,
        mode: str | None = None,
        max_t: float = 100,
        grace_period: float = 1,
        reduction_factor: float = 4,
        brackets: int = 1,
        stop_last_trials: bool = True,
    ):
        super().__init__(metric, mode)
        if not max_t > 0:
            raise ValueError(f"max_t={max_t!r}: give more than 0")
        if not 0 < grace_period <= max_t:
            raise ValueError(f"grace_period={grace_period!r}: give more than 0 and at most max_t={max_t!r}")
        if not reduction_factor > 1:
            raise ValueError(f"reduction_factor={reduction_factor!r}: give more than 1")
        if brackets < 1:
            raise ValueError(f"brackets={brackets!r}: give 1 or more")
        self._time_attr = time_attr
        self._max_t = max_t
        self._stop_last = stop_last_trials
        self.rungs = [rungs_of(grace_period, max_t, reduction_factor, bracket) for bracket in range(brackets)]
        self._keep = 1 - 1 / reduction_factor
        self._scores: dict[tuple[int, float], list[float]] = {}
        self._been: dict[tuple[int, float], set[str]] = {}
        self._bracket: dict[str, int] = {}

    def on_trial_add(self, tune_controller: Trials, trial: Trial) -> None:
        self._bracket[trial.trial_id] = len(self._bracket) % len(self.rungs)

    def on_trial_result(self, tune_controller: Trials, trial: Trial, result: dict[str, Any]) -> str:
        time = result.get(self._time_attr)
        if time is None:
            raise KeyError(f"time_attr={self._time_attr!r} is not in the report; it has: {', '.join(sorted(result))}")
        if self._stop_last and time >= self._max_t:
            return self.STOP
        rung = self._rung_reached(trial, time)
        if rung is None:
            return self.CONTINUE
        earlier = self._scores.setdefault(rung, [])
        own = self.score(result)
        goes_on = own > -math.inf and (not earlier or _reaches(own, quantile(earlier, self._keep)))
        bisect.insort(earlier, own)
        self._been.setdefault(rung, set()).add(trial.trial_id)
        return self.CONTINUE if goes_on else self.STOP

    def _rung_reached(self, trial: Trial, time: float) -> tuple[int, float] | None:
        """Return the highest rung that the trial has come to, unless that was decided already."""
        bracket = self._bracket.setdefault(trial.trial_id, len(self._bracket) % len(self.rungs))
        reached = [rung for rung in self.rungs[bracket] if rung <= time]
        if not reached or trial.trial_id in self._been.get((bracket, reached[-1]), ()):
            return None
        return bracket, reached[-1]


ASHAScheduler = AsyncHyperBandScheduler


def rungs_of(grace_period: float, max_t: float, reduction_factor: float, bracket: int) -> list[float]:
    """Return where a bracket decides, below ``max_t``."""
    rungs, at = [], grace_period * reduction_factor**bracket
    while at < max_t:
        rungs.append(at)
        at *= reduction_factor
    return rungs


def _reaches(value: float, cutoff: float) -> bool:
    return value >= cutoff or math.isclose(value, cutoff)  # a mean of two decimals may lie a hair beside a third


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return the value below which a share of sorted values lies, linear between the two neighbours.

    Minus infinity is a value like others, of which nothing lies between it and the next.
    """
    place = share * (len(ordered) - 1)
    if math.isclose(place, round(place), abs_tol=1e-9):  # a hair beside a whole number is that number
        place = round(place)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    if ordered[low] == -math.inf:
        return ordered[low] if place == low else ordered[high]
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)
