"""A trial as searchers, schedulers and stoppers see it, and the contracts between those and an experiment.

All three are plain deterministic objects: given the same calls in the same order, they decide the same. That is how
their state comes back after a restart, by the calls that the journal has.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol, Self

from shoal._core.plain_data import printable
from shoal._core.retention import score

MODES = ("max", "min")


class TrialStatus(enum.StrEnum):
    """How far a trial has come."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    TERMINATED = "TERMINATED"
    ERROR = "ERROR"


class Trial:
    """One configuration, and what has become of it.

    Attributes
    ----------
    trial_id : str
        Its identifier, which is also a part of its directory's name.
    config : dict
        Its configuration; a scheduler that changes it while the trial is paused gives it back with other parameters.
    status : TrialStatus
        How far it has come.
    last_result : dict
        Its last report, with ``training_iteration`` and ``time_total_s``; empty before the first.
    reports : int
        How many reports it has made, those not counted that it makes again after a restart.
    error : str
        Why it failed.
    started_before : bool
        Whether there is a run of it to go on with.
    resources : dict or None
        What a scheduler has given it instead of what it asked for.
    saved_at : int
        With which report it has made its newest checkpoint; 0 before the first.
    local_path : str
        The directory on this machine's disk in which the driver writes what it knows of the trial; empty before it is
        started for the first time in this search.
    """

    __slots__ = (
        "config",
        "error",
        "last_result",
        "local_path",
        "reports",
        "resources",
        "saved_at",
        "started_before",
        "status",
        "trial_id",
    )

    def __init__(self, trial_id: str, config: dict[str, Any]):
        self.trial_id = trial_id
        self.config = config
        self.status = TrialStatus.PENDING
        self.last_result: dict[str, Any] = {}
        self.reports = 0
        self.error = ""
        self.started_before = False
        self.saved_at = 0
        self.local_path = ""
        self.resources: dict[str, float] | None = None

    def __repr__(self) -> str:
        return f"<trial {self.trial_id} {self.status}>"

    @property
    def has_checkpoint(self) -> bool:
        """Whether it has reported a checkpoint, from which it, or another trial, can go on."""
        return self.saved_at > 0

    @property
    def finished(self) -> bool:
        """Whether it has ended, well or not."""
        return self.status in {TrialStatus.TERMINATED, TrialStatus.ERROR}


class Trials(Protocol):
    """What a scheduler sees of the experiment, under the name that its own kind has in Ray Tune: the controller."""

    def get_trials(self) -> Sequence[Trial]:
        """Return all trials, in the order in which they were made."""

    def get_live_trials(self) -> Sequence[Trial]:
        """Return those that have not ended, in the order in which they were made."""

    def get_waiting_trials(self) -> Sequence[Trial]:
        """Return those that can be started now: new ones, and paused ones whose processes are gone."""

    def clone(self, trial: Trial, source: Trial, config: Mapping[str, Any]) -> None:
        """Have a trial go on from the checkpoint that another one reported last, with this configuration."""

    def stop_trial(self, trial: Trial) -> None:
        """Have a trial end that does not report right now, such as a paused one."""

    def reallocate(self, trial: Trial, resources: Mapping[str, float]) -> None:
        """Give a trial other resources when it goes on the next time."""

    @property
    def total_resources(self) -> Mapping[str, float]:
        """All resources of all machines, as far as they are known."""


class Searcher(ABC):
    """Suggests configurations, and is told what they led to. The base of searchers of one's own.

    Parameters
    ----------
    metric : str, optional
        The metric to optimize, ``"eval/acc"`` for nested ones; the experiment's if it is not given.
    mode : str, optional
        ``"max"`` or ``"min"``.

    Attributes
    ----------
    counts_samples : bool
        Whether it ends by itself after ``num_samples`` samples, each of which may be several trials.
    """

    FINISHED: ClassVar[str] = "FINISHED"
    _made_with: tuple[tuple[Any, ...], dict[str, Any]]

    def __new__(cls, *arguments: Any, **named: Any) -> Self:
        """Remember what it is made with, which is how a search that is restored makes it again."""
        made = super().__new__(cls)
        made._made_with = (arguments, named)
        return made

    counts_samples: ClassVar[bool] = False

    def __init__(self, metric: str | None = None, mode: str | None = None):
        check_mode(mode, optional=True)
        self._metric = metric
        self._mode = mode

    @property
    def metric(self) -> str | None:
        """The metric to optimize."""
        return self._metric

    @property
    def mode(self) -> str | None:
        """``"max"`` or ``"min"``."""
        return self._mode

    def set_search_properties(self, metric: str | None, mode: str | None, config: dict[str, Any], **spec: Any) -> bool:
        """Take what the experiment says, before the first suggestion.

        ``config`` is the search space; ``spec`` has ``num_samples`` and ``seed``. Returns false if the searcher has a
        space of its own already, so that two were given.
        """
        self._metric = self._metric or metric
        self._mode = self._mode or mode
        return True

    def total_samples(self) -> int | None:
        """Return how many trials there will be, where it counts them by itself and knows."""
        return None

    def suggested_before(self, trial_id: str, config: dict[str, Any]) -> dict[str, Any]:
        """Take what an earlier session's searcher has suggested, and return it, with the objects that were in it.

        By default it is suggested anew. A searcher whose suggestions may differ from one session to the next puts the
        recorded configuration in their place.
        """
        again = self.suggest(trial_id)
        return again if isinstance(again, dict) and printable(again) == printable(config) else config

    @abstractmethod
    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        """Return a configuration for a new trial; ``None`` if there is none now, ``FINISHED`` if no more will be."""

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """A trial has reported."""

    @abstractmethod
    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """A trial has ended, with its last report; ``error`` says whether it failed."""


class TrialScheduler(ABC):
    """Decides at each report whether a trial goes on. The base of schedulers of one's own.

    Attributes
    ----------
    decides : bool
        Whether a report has to wait for a decision. A scheduler that only ever lets trials go on says false.
    needs_metric : bool
        Whether it cannot decide without one.
    ahead : bool
        Whether all trials are to be made before the first one runs, as a population.
    """

    CONTINUE: ClassVar[str] = "CONTINUE"
    PAUSE: ClassVar[str] = "PAUSE"
    STOP: ClassVar[str] = "STOP"
    NOOP: ClassVar[str] = "NOOP"
    _made_with: tuple[tuple[Any, ...], dict[str, Any]]

    def __new__(cls, *arguments: Any, **named: Any) -> Self:
        """Remember what it is made with, which is how a search that is restored makes it again."""
        made = super().__new__(cls)
        made._made_with = (arguments, named)
        return made

    decides: ClassVar[bool] = True
    needs_metric: ClassVar[bool] = False
    ahead: ClassVar[bool] = False

    def __init__(self, metric: str | None = None, mode: str | None = None):
        check_mode(mode, optional=True)
        self._metric = metric
        self._mode = mode

    @property
    def metric(self) -> str | None:
        """The metric to decide by."""
        return self._metric

    @property
    def mode(self) -> str | None:
        """``"max"`` or ``"min"``."""
        return self._mode

    def set_search_properties(self, metric: str | None, mode: str | None, **spec: Any) -> bool:
        """Take the experiment's metric and mode where there is none; false if both were given and differ."""
        if self._metric and metric and (self._metric, self._mode or mode) != (metric, mode or self._mode):
            return False
        self._metric = self._metric or metric
        self._mode = self._mode or mode
        return True

    def on_trial_add(self, tune_controller: Trials, trial: Trial) -> None:
        """A trial was made."""

    @abstractmethod
    def on_trial_result(self, tune_controller: Trials, trial: Trial, result: dict[str, Any]) -> str:
        """A trial has reported: return ``CONTINUE``, ``PAUSE`` or ``STOP``."""

    def on_trial_complete(self, tune_controller: Trials, trial: Trial, result: dict[str, Any]) -> None:
        """A trial has ended by itself."""

    def on_trial_error(self, tune_controller: Trials, trial: Trial) -> None:
        """A trial has failed for good."""

    def on_trial_remove(self, tune_controller: Trials, trial: Trial) -> None:
        """A trial was ended that did not run."""

    def choose_trial_to_run(self, tune_controller: Trials) -> Trial | None:
        """Return which waiting trial is to run next: the first that is new, then the first that is paused."""
        waiting = tune_controller.get_waiting_trials()
        return min(waiting, key=lambda t: t.status is TrialStatus.PAUSED, default=None)

    def on_no_available_trials(self, tune_controller: Trials) -> None:
        """No trial runs, none was chosen, and no new one comes: end what waits for nothing."""

    def score(self, result: Mapping[str, Any]) -> float:
        """Return what is to be as large as possible; missing, ``None`` and NaN are worse than every number."""
        return score(result, self._metric or "", self._mode or "max")


class Stopper(ABC):
    """Ends trials, or the whole experiment, by what is reported. The base of stoppers of one's own."""

    @abstractmethod
    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        """Return whether the trial that has reported this is to end."""

    @abstractmethod
    def stop_all(self) -> bool:
        """Return whether the whole experiment is to end."""


def check_mode(mode: str | None, *, optional: bool = False) -> None:
    """Raise ``ValueError`` if this is neither ``"max"`` nor ``"min"``."""
    if mode not in MODES and not (optional and mode is None):
        raise ValueError(f"mode={mode!r}: choose 'max' or 'min'")
