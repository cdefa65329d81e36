"""The metric that a search is about: whether reports have it, and which is the best of them."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from typing import Any

from shoal._core.retention import lookup, score
from shoal._core.trials import Trial

ADDED = frozenset({"training_iteration", "timestamp", "time_total_s", "attempt", "data_wait_share"})


class MetricWatch:
    """Looks at the metric in every report.

    Reports without the metric are usual where it is not measured each time. A trial that ends without a single one that
    has it shows that the name is wrong.

    Attributes
    ----------
    best_trial : str or None
        The identifier of the trial with the best report so far.
    best_value : float
        Its metric in that report.
    """

    def __init__(self, metric: str | None, mode: str | None):
        self.metric = metric
        self.mode = mode or "max"
        self.best_trial: str | None = None
        self.best_value = math.nan
        self._best_score = -math.inf
        self._seen = False
        self._warned = False

    def concerns(self, row: Mapping[str, Any]) -> bool:
        """Whether a report says anything of the metric, be it that it is NaN."""
        return self.metric is None or self._has(row)

    def look(self, trial: Trial, row: Mapping[str, Any]) -> str:
        """Return a warning if the first report of the first trial lacks the metric; empty later on."""
        if self.metric is None or self._warned or self._seen or self._has(row):
            return ""
        self._warned = True
        return (
            f"metric {self.metric!r} is not in the first report, which has: {_names(row)}.{_advice(self.metric, row)} "
            "The search goes on, and fails if the first trial ends without it"
        )

    def take(self, trial: Trial, row: Mapping[str, Any]) -> None:
        """Take a report."""
        if self.metric is None or not self._has(row):
            return
        self._seen = True
        value = score(row, self.metric, self.mode)
        if value > self._best_score:
            self._best_score = value
            self.best_trial, self.best_value = trial.trial_id, float(lookup(row, self.metric))

    def never_reported(self, trial: Trial, completed: bool) -> str:
        """Return why the search fails, if a trial has ended and no report had the metric."""
        if self.metric is None or self._seen or not completed or not trial.reports:
            return ""
        row = trial.last_result
        return (
            f"metric {self.metric!r} is in no report of trial {trial.trial_id}, which reported: {_names(row)}."
            f"{_advice(self.metric, row)} Name one of these as TuneConfig(metric=...), or report it"
        )

    def _has(self, row: Mapping[str, Any]) -> bool:
        return self.metric is not None and (self.metric in row or _has_path(row, self.metric))


def _has_path(row: Mapping[str, Any], key: str) -> bool:
    head, _, rest = key.partition("/")
    inner = row.get(head)
    return bool(rest) and isinstance(inner, Mapping) and (rest in inner or _has_path(inner, rest))


def _names(row: Mapping[str, Any]) -> str:
    return ", ".join(sorted(key for key in row if key not in ADDED)) or "nothing"


def _advice(metric: str, row: Mapping[str, Any]) -> str:
    near = difflib.get_close_matches(metric, [key for key in row if key not in ADDED], n=1)
    return f" Did you mean {near[0]!r}?" if near else ""
