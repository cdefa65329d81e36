"""What a run or a search looks like from outside, told from its journal: for lists, pages and machines that ask."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from shoal._core import search
from shoal._core.failure import Failure, headline
from shoal._core.records import AnyRecord, Attempt, fold
from shoal._core.retention import lookup, policy_of, ranked
from shoal._core.states import FINAL

WORDS = {"TERMINATED": "done", "RUNNING": "running", "PENDING": "waiting", "PAUSED": "paused", "ERROR": "failed"}
DIED = "DIED"  # the state of a run whose driver is gone and has said nothing of an end


class FailureView(msgspec.Struct, kw_only=True):
    """What ended a rank: in one line, and its traceback."""

    attempt: int
    rank: int
    host: str
    report: int
    text: str
    traceback: str
    cause: bool


class CheckpointView(msgspec.Struct, kw_only=True):
    """A checkpoint that is kept."""

    n: int
    name: str
    status: str
    best: bool
    metrics: dict[str, Any]


class TrialView(msgspec.Struct, kw_only=True):
    """One trial of a search. ``best`` is the best value of the search's metric that it has reported."""

    trial_id: str
    status: str
    config: dict[str, Any]
    reports: int = 0
    metrics: dict[str, Any] = {}
    best: float | None = None
    error: str = ""
    started_at: float | None = None
    ended_at: float | None = None
    directory: str = ""


class Overview(msgspec.Struct, kw_only=True):
    """A run, a trial or a search: ``kind`` says which.

    ``state`` is one of the run's states, or DIED. ``driver`` is who drives it, if anybody does; ``workers`` are those
    that live, each with ``rank``, ``host``, ``phase``, ``report``, and what it uses.
    """

    kind: str
    name: str
    path: str
    state: str
    reason: str = ""
    function: str = ""
    started_at: float = 0.0
    ended_at: float | None = None
    reports: int = 0
    metric: str | None = None
    mode: str | None = None
    best: float | None = None
    metrics: dict[str, Any] = {}
    config: Any = None
    asked: dict[str, Any] = {}
    size: int = 0
    driver: dict[str, Any] | None = None
    attempts: list[Attempt] = []
    failures: list[FailureView] = []
    checkpoints: list[CheckpointView] = []
    workers: list[dict[str, Any]] = []
    trials: list[TrialView] = []
    ranks: list[int] = []

    @property
    def live(self) -> bool:
        """Whether somebody drives it now."""
        return self.driver is not None

    @property
    def best_first(self) -> list[TrialView]:
        """The trials of a search, the best first and those without a value last."""
        worst = float("-inf") if self.mode == "max" else float("inf")
        return sorted(self.trials, key=lambda t: worst if t.best is None else t.best, reverse=self.mode == "max")

    @property
    def progress(self) -> str:
        """How far it has come, in a few words."""
        if self.kind != "search":
            return f"{self.reports} report" + ("s" if self.reports != 1 else "")
        counts = Counter(trial.status for trial in self.trials)
        told = ", ".join(f"{counts[status]} {word}" for status, word in WORDS.items() if counts[status])
        return f"{len(self.trials)} trials" + (f" ({told})" if told else "")


def state_of(ended: str | None, alive: bool, status: Mapping[str, Any]) -> str:
    """Return the state of a run: how it ended, how its driver says that it is, or that the driver has died."""
    if ended is not None:
        return ended
    if not alive:
        return DIED
    told = str(status.get("state", "STARTING"))
    return "ENDING" if told in FINAL else told  # it has ended, and its driver is about to write that down


def of_run(
    records: Sequence[AnyRecord],
    asked: Mapping[str, Any],
    row: Mapping[str, Any],
    alive: bool,
    status: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the fields of an :class:`Overview` that a run's journal, last row and driver tell."""
    history = fold(records)
    policy = policy_of(asked)
    best = ranked(history.checkpoints, policy) if policy.score_attribute else []
    return {
        "state": state_of(history.ended.state if history.ended else None, alive, status),
        "reason": history.ended.reason if history.ended else "",
        "started_at": records[0].at if records else float(asked.get("started_at", 0.0)),
        "ended_at": history.ended.at if history.ended else None,
        "function": str(asked.get("function", "")),
        "reports": int(row.get("training_iteration", 0)),
        "metric": policy.score_attribute,
        "mode": policy.score_order if policy.score_attribute else None,
        "best": number(lookup(best[0].metrics, policy.score_attribute or "")) if best else None,
        "metrics": dict(row),
        "attempts": history.attempts,
        "failures": list(failures(history.failures)),
        "checkpoints": [
            CheckpointView(n=c.n, name=c.name, status=c.status, best=bool(best) and c is best[0], metrics=c.metrics)
            for c in sorted(history.checkpoints, key=lambda c: c.n)
        ],
    }


def failures(found: Iterable[Failure]) -> Iterable[FailureView]:
    """Return failures for people, the cause of each attempt first."""
    seen: set[int] = set()
    for failure in found:
        yield FailureView(
            attempt=failure.attempt,
            rank=failure.rank,
            host=failure.host,
            report=failure.report,
            text=headline(failure),
            traceback=failure.error.traceback if failure.error else "",
            cause=failure.attempt not in seen,
        )
        seen.add(failure.attempt)


class SearchFold:
    """The trials of a search, told from its journal record by record, so that a growing one is read once.

    Parameters
    ----------
    metric, mode : str or None
        By which its trials are compared.
    """

    def __init__(self, metric: str | None, mode: str | None):
        self.metric, self.mode = metric, mode
        self.trials: dict[str, TrialView] = {}
        self.started_at = 0.0
        self.ended: search.SearchEnded | None = None

    def apply(self, record: search.AnySearchRecord) -> None:
        """Add one record."""
        match record:
            case search.SearchStarted():
                self.started_at = self.started_at or record.at
                self.ended = None
            case search.SearchEnded():
                self.ended = record
            case search.TrialCreated():
                self.trials[record.trial_id] = TrialView(
                    trial_id=record.trial_id, status="PENDING", config=record.config
                )
            case search.TrialCloned() if record.trial_id in self.trials:
                self.trials[record.trial_id].config = record.config
            case search.TrialStarted() | search.TrialResult() | search.TrialOver() | search.TrialRemoved():
                if record.trial_id in self.trials:
                    self._of_trial(self.trials[record.trial_id], record)

    def _of_trial(self, trial: TrialView, record: search.AnySearchRecord) -> None:
        match record:
            case search.TrialStarted():
                trial.status, trial.started_at = "RUNNING", trial.started_at or record.at
                trial.ended_at = None
            case search.TrialResult():
                trial.reports, trial.metrics = record.n, record.row
                trial.best = better(trial.best, number(lookup(record.row, self.metric or "")), self.mode)
            case search.TrialOver():
                trial.status, trial.error, trial.ended_at = record.status, record.error, record.at
            case search.TrialRemoved():
                trial.status, trial.ended_at = "TERMINATED", record.at

    def fields(self, alive: bool, status: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of an :class:`Overview` that are known from it."""
        best = None
        for trial in self.trials.values():
            best = better(best, trial.best, self.mode)
        leading = next((t for t in self.trials.values() if t.best is not None and t.best == best), None)
        return {
            "state": state_of(self.ended.state if self.ended else None, alive, status),
            "reason": self.ended.reason if self.ended else "",
            "started_at": self.started_at,
            "ended_at": self.ended.at if self.ended else None,
            "reports": sum(trial.reports for trial in self.trials.values()),
            "metric": self.metric,
            "mode": self.mode,
            "best": best,
            "metrics": leading.metrics if leading else {},
            # Where the driver is gone nothing runs: these would go on from their newest checkpoints.
            "trials": [
                msgspec.structs.replace(
                    trial, status="PENDING" if trial.status == "RUNNING" and not alive else trial.status
                )
                for trial in self.trials.values()
            ],
        }


def better(one: float | None, other: float | None, mode: str | None) -> float | None:
    """Return the better of two values, of which either may be missing."""
    if one is None or other is None:
        return other if one is None else one
    return max(one, other) if mode == "max" else min(one, other)


def number(value: Any) -> float | None:
    """Return a value as a number that can be compared; ``None`` if it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        return None
    return float(value)
