"""What is asked of a search."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from shoal._core.trials import Searcher, Trial, TrialScheduler, check_mode


@dataclass
class TuneConfig:
    """What a search optimizes, how many trials it makes, and who suggests and decides.

    Parameters
    ----------
    mode : str, optional
        ``"max"`` or ``"min"``.
    metric : str, optional
        The metric to optimize, ``"eval/acc"`` for nested ones. If it is given to the scheduler or the searcher alone,
        that one counts.
    search_alg : Searcher or str, optional
        What suggests configurations, or its name; grids and random samples by default.
    scheduler : TrialScheduler or str, optional
        What decides which trials go on, or its name; all of them by default.
    num_samples : int
        How many configurations are drawn, each point of a grid so often; -1 until the time is over.
    max_concurrent_trials : int, optional
        How many trials run at a time at most; as many as there is room for by default.
    time_budget_s : float or timedelta, optional
        After how many seconds the search ends.
    reuse_actors, reuse_workers : bool
        Whether one process runs trial after trial, instead of a new one for each: faster for very short trials, but
        what one leaves behind (modules, threads, memory) the next one finds.
    trial_name_creator, trial_dirname_creator : callable, optional
        Return the name of a trial, and of its directory, for the trial.
    seed : int, optional
        Of everything that is drawn; another one each time by default, which the experiment keeps.
    chdir_to_trial_dir : object
        Accepted so that scripts move over: a trial's working directory is that of the driver.
    """

    mode: str | None = None
    metric: str | None = None
    search_alg: Searcher | str | None = None
    scheduler: TrialScheduler | str | None = None
    num_samples: int = 1
    max_concurrent_trials: int | None = None
    time_budget_s: float | timedelta | None = None
    reuse_actors: bool = False
    trial_name_creator: Callable[[Trial], str] | None = None
    trial_dirname_creator: Callable[[Trial], str] | None = None
    chdir_to_trial_dir: Any = None
    reuse_workers: bool = False
    seed: int | None = None

    def __post_init__(self) -> None:
        check_mode(self.mode, optional=True)
        if isinstance(self.num_samples, bool) or not isinstance(self.num_samples, int) or self.num_samples < -1:
            raise ValueError(f"num_samples={self.num_samples!r}: give 1 or more, or -1 for as many as time allows")
        if self.num_samples == 0:
            raise ValueError("num_samples=0 makes no trial; give 1 or more, or -1 for as many as time allows")
        if self.num_samples == -1 and self.time_budget_s is None:
            raise ValueError("num_samples=-1 has no end; give time_budget_s as well, in seconds")
        if self.max_concurrent_trials is not None and not self.max_concurrent_trials >= 1:
            raise ValueError(f"max_concurrent_trials={self.max_concurrent_trials!r}: give 1 or more, or None")
        if self.budget is not None and not self.budget > 0:
            raise ValueError(f"time_budget_s={self.time_budget_s!r}: give more than 0 seconds")

    @property
    def budget(self) -> float | None:
        """The time budget in seconds."""
        if isinstance(self.time_budget_s, timedelta):
            return self.time_budget_s.total_seconds()
        return self.time_budget_s

    @property
    def reuses(self) -> bool:
        """Whether one process runs trial after trial."""
        return self.reuse_actors or self.reuse_workers
