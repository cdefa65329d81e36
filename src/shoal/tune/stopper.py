"""Rules that end trials, or the whole experiment, by what is reported."""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from shoal._core.retention import lookup, score
from shoal._core.trials import Stopper, check_mode


class NoopStopper(Stopper):
    """Ends nothing."""

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        return False


class FunctionStopper(NoopStopper):
    """Ends a trial when a function of its identifier and its report says so.

    Examples
    --------
    >>> from shoal.tune.stopper import FunctionStopper
    >>> FunctionStopper(lambda trial_id, result: result["loss"] > 10)("a", {"loss": 11})
    True
    """

    def __init__(self, function: Callable[[str, dict[str, Any]], bool]):
        if not callable(function):
            raise TypeError(f"FunctionStopper({function!r}): give a function of a trial's identifier and its report")
        self._function = function

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return bool(self._function(trial_id, result))


class DictStopper(NoopStopper):
    """Ends a trial when one of some metrics reaches its threshold: ``{"training_iteration": 10, "eval/acc": 0.9}``.

    Examples
    --------
    >>> from shoal.tune.stopper import DictStopper
    >>> DictStopper({"eval/acc": 0.9})("a", {"eval": {"acc": 0.95}})
    True
    """

    def __init__(self, thresholds: Mapping[str, float]):
        for key, threshold in thresholds.items():
            if isinstance(threshold, bool) or not isinstance(threshold, (int, float)):
                raise TypeError(f"stop[{key!r}]={threshold!r}: give a number at which a trial ends")
        self._thresholds = dict(thresholds)

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        values = ((lookup(result, key), threshold) for key, threshold in self._thresholds.items())
        return any(isinstance(value, (int, float)) and value >= threshold for value, threshold in values)


class MaximumIterationStopper(NoopStopper):
    """Ends each trial after so many reports.

    Examples
    --------
    >>> from shoal.tune.stopper import MaximumIterationStopper
    >>> stopper = MaximumIterationStopper(2)
    >>> [stopper("a", {}), stopper("a", {})]
    [False, True]
    """

    def __init__(self, max_iter: int):
        if max_iter < 1:
            raise ValueError(f"max_iter={max_iter!r}: give 1 or more")
        self._most = max_iter
        self._counts: dict[str, int] = {}

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        self._counts[trial_id] = self._counts.get(trial_id, 0) + 1
        return self._counts[trial_id] >= self._most


class TimeoutStopper(NoopStopper):
    """Ends the whole experiment after a time, counted from the first look at the clock.

    Parameters
    ----------
    timeout : float or timedelta
        Seconds, if a number.
    clock : callable
        Returns seconds.
    """

    def __init__(self, timeout: float | timedelta, clock: Callable[[], float] = time.monotonic):
        seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else float(timeout)
        if not seconds > 0:
            raise ValueError(f"timeout={timeout!r}: give more than 0 seconds")
        self._seconds = seconds
        self._clock = clock
        self._began: float | None = None

    def stop_all(self) -> bool:
        if self._began is None:
            self._began = self._clock()
        return self._clock() - self._began >= self._seconds


class TrialPlateauStopper(NoopStopper):
    """Ends a trial whose metric moves no more: its last results lie within a small standard deviation.

    Parameters
    ----------
    metric : str
        The metric, ``"eval/acc"`` for nested ones.
    std : float
        At or below which standard deviation of the last results it stands still.
    num_results : int
        How many results that is looked at over.
    grace_period : int
        How many reports a trial makes at least.
    metric_threshold : float, optional
        Only a trial whose metric is at least this (at most, with ``mode="min"``) is ended.
    mode : str, optional
        ``"max"`` or ``"min"``, with ``metric_threshold``.
    """

    def __init__(
        self,
        metric: str,
        std: float = 0.01,
        num_results: int = 4,
        grace_period: int = 4,
        metric_threshold: float | None = None,
        mode: str | None = None,
    ):
        if metric_threshold is not None:
            check_mode(mode)
        if num_results < 2:
            raise ValueError(f"num_results={num_results!r}: give 2 or more")
        self._metric, self._std, self._count, self._grace = metric, std, num_results, grace_period
        self._threshold, self._mode = metric_threshold, mode or "max"
        self._windows: dict[str, deque[float]] = {}
        self._reports: dict[str, int] = {}

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        self._reports[trial_id] = self._reports.get(trial_id, 0) + 1
        value = score(result, self._metric, self._mode)
        window = self._windows.setdefault(trial_id, deque(maxlen=self._count))
        window.append(value)
        if self._reports[trial_id] < self._grace or len(window) < self._count or min(window) == -float("inf"):
            return False
        if self._threshold is not None and value < (self._threshold if self._mode == "max" else -self._threshold):
            return False
        return statistics.pstdev(window) <= self._std


class ExperimentPlateauStopper(Stopper):
    """Ends the whole experiment when its best results move no more.

    Parameters
    ----------
    metric : str
        The metric, ``"eval/acc"`` for nested ones.
    std : float
        At or below which standard deviation of the best results they stand still.
    top : int
        How many of the best results are looked at.
    mode : str
        ``"max"`` or ``"min"``.
    patience : int
        For how many reports more they have to.
    """

    def __init__(self, metric: str, std: float = 0.001, top: int = 10, mode: str = "min", patience: int = 0):
        check_mode(mode)
        if top < 2:
            raise ValueError(f"top={top!r}: give 2 or more")
        if patience < 0:
            raise ValueError(f"patience={patience!r}: give 0 or more")
        self._metric, self._std, self._top, self._mode, self._patience = metric, std, top, mode, patience
        self._best: list[float] = []
        self._still = 0

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        value = score(result, self._metric, self._mode)
        if value > -float("inf"):
            self._best = sorted([*self._best, value], reverse=True)[: self._top]
        flat = len(self._best) == self._top and statistics.pstdev(self._best) <= self._std
        self._still = self._still + 1 if flat else 0
        return self.stop_all()

    def stop_all(self) -> bool:
        return self._still > self._patience


class CombinedStopper(Stopper):
    """Ends what one of several stoppers ends; every one of them sees every report.

    Examples
    --------
    >>> from shoal.tune.stopper import CombinedStopper, DictStopper, MaximumIterationStopper
    >>> stopper = CombinedStopper(MaximumIterationStopper(10), DictStopper({"accuracy": 0.9}))
    """

    def __init__(self, *stoppers: Stopper):
        for stopper in stoppers:
            if not isinstance(stopper, Stopper):
                raise TypeError(f"CombinedStopper: {stopper!r} is a {type(stopper).__name__}, not a Stopper")
        self._stoppers = stoppers

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        answers = [stopper(trial_id, result) for stopper in self._stoppers]  # each sees every report
        return any(answers)

    def stop_all(self) -> bool:
        return any(stopper.stop_all() for stopper in self._stoppers)


def as_stopper(stop: Any) -> Stopper:
    """Return what a person gave as ``stop``: a stopper, a mapping of metrics to thresholds, a function, or nothing."""
    if stop is None:
        return NoopStopper()
    if isinstance(stop, Stopper):
        return stop
    if isinstance(stop, Mapping):
        return DictStopper(stop)
    if callable(stop):
        return FunctionStopper(stop)
    if isinstance(stop, (list, tuple)):
        return CombinedStopper(*(as_stopper(one) for one in stop))
    raise TypeError(f"stop={stop!r}: give a Stopper, {{'metric': threshold}}, a function, or a list of these")


__all__ = [
    "CombinedStopper",
    "DictStopper",
    "ExperimentPlateauStopper",
    "FunctionStopper",
    "MaximumIterationStopper",
    "NoopStopper",
    "Stopper",
    "TimeoutStopper",
    "TrialPlateauStopper",
    "as_stopper",
]
