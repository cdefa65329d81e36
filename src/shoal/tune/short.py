"""``tune.run()``, the short form of a search, and the analysis that it returns."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from shoal.train.checkpoint import Checkpoint
from shoal.train.config import CheckpointConfig, FailureConfig, RunConfig
from shoal.train.result import Result
from shoal.tune.config import TuneConfig
from shoal.tune.resources import with_resources
from shoal.tune.result_grid import ResultGrid, TuneError
from shoal.tune.tuner import Tuner

if TYPE_CHECKING:
    import pandas as pd


class ExperimentAnalysis:
    """The results of a search, under the names of Ray Tune's older interface; ``grid`` has them as a ``ResultGrid``."""

    def __init__(self, grid: ResultGrid, *, default_metric: str | None = None, default_mode: str | None = None):
        self.grid = grid
        self._metric, self._mode = default_metric, default_mode

    @property
    def results(self) -> list[Result]:
        """The result of every trial."""
        return list(self.grid)

    @property
    def best_result(self) -> dict[str, Any]:
        """The last report of the best trial."""
        return self._best().metrics

    @property
    def best_config(self) -> dict[str, Any]:
        """The configuration of the best trial."""
        return self._best().config

    @property
    def best_checkpoint(self) -> Checkpoint | None:
        """The newest checkpoint of the best trial."""
        return self._best().checkpoint

    @property
    def best_logdir(self) -> str:
        """The directory of the best trial."""
        return self._best().path

    @property
    def results_df(self) -> pd.DataFrame:
        """The last report of every trial as a pandas frame."""
        return self.dataframe()

    @property
    def experiment_path(self) -> str:
        """The directory of the experiment."""
        return self.grid.experiment_path

    def dataframe(self, metric: str | None = None, mode: str | None = None) -> pd.DataFrame:
        """Return a pandas frame with the last report of every trial, or its best by a metric."""
        return self.grid.get_dataframe(metric, mode)

    def get_best_config(
        self, metric: str | None = None, mode: str | None = None, scope: str = "last"
    ) -> dict[str, Any]:
        """Return the configuration of the best trial."""
        return self._best(metric, mode, scope).config

    def _best(self, metric: str | None = None, mode: str | None = None, scope: str = "last") -> Result:
        return self.grid.get_best_result(metric or self._metric, mode or self._mode, scope)


def run(
    run_or_experiment: Any,
    *,
    name: str | None = None,
    metric: str | None = None,
    mode: str | None = None,
    stop: Any = None,
    time_budget_s: Any = None,
    config: Mapping[str, Any] | None = None,
    resources_per_trial: Any = None,
    num_samples: int = 1,
    storage_path: str | os.PathLike[str] | None = None,
    storage_filesystem: Any = None,
    search_alg: Any = None,
    scheduler: Any = None,
    checkpoint_config: CheckpointConfig | None = None,
    verbose: int | None = None,
    trial_name_creator: Any = None,
    trial_dirname_creator: Any = None,
    max_failures: int = 0,
    fail_fast: bool | str = False,
    resume: bool | str | None = None,
    reuse_actors: bool = False,
    raise_on_failed_trial: bool = True,
    callbacks: Sequence[Any] | None = None,
    progress_reporter: Any = None,
    max_concurrent_trials: int | None = None,
) -> ExperimentAnalysis:
    """Run a search and return its analysis; the short form of :class:`~shoal.tune.Tuner`.

    ``progress_reporter`` is taken and has no effect.

    Raises
    ------
    TuneError
        If trials failed and ``raise_on_failed_trial``, or the search could not go on.

    Examples
    --------
    >>> from shoal import tune
    >>> analysis = tune.run(
    ...     lambda config: {"loss": config["x"] ** 2},
    ...     config={"x": tune.grid_search([-1, 0, 2])}, metric="loss", mode="min", verbose=0,
    ... )
    >>> analysis.best_config
    {'x': 0}
    """
    trainable = run_or_experiment
    if resources_per_trial is not None:
        trainable = with_resources(trainable, resources_per_trial)
    grid = Tuner(
        trainable,
        param_space=config,
        tune_config=TuneConfig(
            metric=metric,
            mode=mode,
            search_alg=search_alg,
            scheduler=scheduler,
            num_samples=num_samples,
            time_budget_s=time_budget_s,
            max_concurrent_trials=max_concurrent_trials,
            reuse_actors=reuse_actors,
            trial_name_creator=trial_name_creator,
            trial_dirname_creator=trial_dirname_creator,
        ),
        run_config=RunConfig(
            name=name,
            storage_path=storage_path,
            storage_filesystem=storage_filesystem,
            stop=stop,
            failure_config=FailureConfig(max_failures=max_failures, fail_fast=fail_fast),
            checkpoint_config=checkpoint_config,
            verbose=verbose,
            callbacks=callbacks,
            resume="auto" if resume in {"AUTO", "AUTO+ERRORED"} else bool(resume),
        ),
    ).fit()
    if grid.num_errors and raise_on_failed_trial:
        failed = [str(error).splitlines()[0] for error in grid.errors[:3]]
        raise TuneError(f"{grid.num_errors} of {len(grid)} trials failed: {'; '.join(failed)}") from grid.errors[0]
    return ExperimentAnalysis(grid, default_metric=metric, default_mode=mode)
