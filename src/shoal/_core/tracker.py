"""The contract for experiment trackers, and how runs and searches tell them what happens."""

from __future__ import annotations

import hashlib
import math
from abc import ABC
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shoal._core.contracts import Callback
from shoal._core.plain_data import flat
from shoal._core.trial_callback import TrialCallback
from shoal._core.trials import Trial


@dataclass(frozen=True)
class Tracked:
    """One run, or one trial of a search, as a tracker sees it.

    Attributes
    ----------
    key : str
        32 hexadecimal digits that stay the same when a later driver goes on with it.
    name : str
        What people call it.
    group : str
        The search that it is a trial of; empty for a run.
    path : str
        Its directory, or where in storage it is kept.
    config : dict
        Its parameters.
    """

    key: str
    name: str
    group: str
    path: str
    config: dict[str, Any] = field(default_factory=dict, hash=False)


class Tracker(ABC):
    """Passes what runs and trials report to a service that people look at. Give it in ``RunConfig(callbacks=[...])``.

    Its methods are called one at a time, in a thread of the tracker's own: training never waits for them. What they
    raise is shown, and training goes on. A new tracker is one class with some of these methods.

    Examples
    --------
    >>> from shoal import train
    >>> from shoal.abc import Tracker
    >>> class Ledger(Tracker):
    ...     rows = []
    ...
    ...     def log(self, run, step, metrics):
    ...         self.rows.append((step, metrics["loss"]))
    >>> ledger = Ledger()
    >>> result = train.DataParallelTrainer(
    ...     lambda: train.report({"loss": 0.5}), run_config=train.RunConfig(callbacks=[ledger], verbose=0)
    ... ).fit()
    >>> ledger.rows
    [(1, 0.5)]
    """

    def begin(self, run: Tracked) -> None:
        """A run or trial starts, or a later driver or attempt goes on with it."""

    def log(self, run: Tracked, step: int, metrics: Mapping[str, float]) -> None:
        """It has made its report number ``step``; nested metrics are flat, with ``/`` between their names."""

    def checkpoint(self, run: Tracked, step: int, path: str) -> None:
        """Its checkpoint of that report is visible at ``path``."""

    def end(self, run: Tracked, state: str, reason: str) -> None:
        """It is over. ``state`` is ``"FINISHED"``, ``"FAILED"`` or ``"STOPPED"``; ``reason`` is the root cause."""

    def close(self) -> None:
        """Nothing more follows: send what is left."""


Tell = Callable[..., None]  # has a method of a tracker called in its turn, with these arguments


class RunTracking(Callback):
    """Tells a tracker of a run."""

    def __init__(self, tell: Tell, finish: Callable[[], None]):
        self._tell, self._finish = tell, finish
        self._run = Tracked("", "", "", "")
        self._cause = ""

    def on_run_start(self, name: str, path: str, **info: Any) -> None:
        self._run = Tracked(key_of(info["began"], path), name, "", path, dict(info["config"]))
        self._tell("begin", self._run)

    def on_report(self, metrics: Mapping[str, Any]) -> None:
        self._tell("log", self._run, metrics["training_iteration"], numbers(metrics))

    def on_checkpoint(self, report: int, path: str, metrics: Mapping[str, Any]) -> None:
        self._tell("checkpoint", self._run, report, path)

    def on_failure(self, attempt: int, cause: str, **info: Any) -> None:
        self._cause = cause

    def on_run_end(self, state: str, reason: str) -> None:
        self._tell("end", self._run, state, self._cause if state == "FAILED" and self._cause else reason)
        self._finish()


class TrialTracking(TrialCallback):
    """Tells a tracker of the trials of a search."""

    def __init__(self, tell: Tell, finish: Callable[[], None]):
        self._tell, self._finish = tell, finish
        self._runs: dict[str, Tracked] = {}

    def on_trial_start(self, iteration: int, trials: Sequence[Trial], trial: Trial, **info: Any) -> None:
        key, name = key_of(trial.trial_id), trial.trial_id
        self._runs[name] = run = Tracked(key, name, search_of(trial), trial.local_path, dict(trial.config))
        self._tell("begin", run)

    def on_trial_result(
        self, iteration: int, trials: Sequence[Trial], trial: Trial, result: dict[str, Any], **info: Any
    ) -> None:
        if run := self._runs.get(trial.trial_id):
            self._tell("log", run, result["training_iteration"], numbers(result))

    def on_checkpoint(
        self, iteration: int, trials: Sequence[Trial], trial: Trial, checkpoint: Any, **info: Any
    ) -> None:
        if run := self._runs.get(trial.trial_id):
            self._tell("checkpoint", run, trial.reports, str(checkpoint.path))

    def on_trial_complete(self, iteration: int, trials: Sequence[Trial], trial: Trial, **info: Any) -> None:
        self._end(trial, "FINISHED", "")

    def on_trial_error(self, iteration: int, trials: Sequence[Trial], trial: Trial, **info: Any) -> None:
        self._end(trial, "FAILED", trial.error)

    def on_experiment_end(self, trials: Sequence[Trial], **info: Any) -> None:
        for trial in trials:
            self._end(trial, "STOPPED", "the search has ended")
        self._finish()

    def _end(self, trial: Trial, state: str, reason: str) -> None:
        if run := self._runs.pop(trial.trial_id, None):
            self._tell("end", run, state, reason)


def search_of(trial: Trial) -> str:
    """Return the identifier of the search that a trial belongs to."""
    return trial.trial_id.partition("_")[0]


def key_of(*parts: Any) -> str:
    """Return the same 32 hexadecimal digits for the same parts."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


def numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return the finite numbers among metrics, by names with ``/`` between the levels."""
    return {
        name: float(value)
        for name, value in flat(metrics).items()
        if isinstance(value, bool | int | float) and math.isfinite(value)
    }
