"""What ``Tuner.fit()`` returns: the results of all trials, and which is the best."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal._core.errors import ShoalError, TrainingFailedError
from shoal._core.retention import lookup
from shoal._core.trials import Trial, TrialStatus, check_mode
from shoal._runtime.directory import has_run, records_of
from shoal._runtime.resume import effective_rows
from shoal._worker.remote import Remote
from shoal.train.result import Result
from shoal.tune.plots import plot
from shoal.tune.study import Tried, study_of

if TYPE_CHECKING:
    import optuna
    import pandas as pd

SCOPES: dict[str, Callable[[list[float], bool], float]] = {
    "last": lambda values, most: values[-1],
    "all": lambda values, most: max(values) if most else min(values),
    "avg": lambda values, most: sum(values) / len(values),
    "last-5-avg": lambda values, most: sum(values[-5:]) / len(values[-5:]),
    "last-10-avg": lambda values, most: sum(values[-10:]) / len(values[-10:]),
}


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A trial, its configuration as people see it, where it lies, and what it raised."""

    trial: Trial
    config: dict[str, Any]
    place: Path | Remote
    error: BaseException | None = None


class ResultGrid:
    """The results of a search, in the order in which trials were made.

    Results are read when they are asked for, so that a grid of thousands costs little.

    Examples
    --------
    >>> from shoal import tune
    >>> def objective(config):
    ...     tune.report({"loss": (config["x"] - 1) ** 2})
    >>> tuner = tune.Tuner(
    ...     objective,
    ...     param_space={"x": tune.grid_search([0, 1, 3])},
    ...     tune_config=tune.TuneConfig(metric="loss", mode="min"),
    ...     run_config=tune.RunConfig(verbose=0),
    ... )
    >>> grid = tuner.fit()
    >>> len(grid), grid.num_errors, grid.get_best_result().config
    (3, 0, {'x': 1})
    """

    def __init__(
        self,
        path: Path | Remote,
        entries: list[Entry],
        *,
        metric: str | None = None,
        mode: str | None = None,
        space: Any = None,
    ):
        self._path = path
        self._space = space
        self._entries = entries
        self._metric = metric
        self._mode = mode

    def __len__(self) -> int:
        return len(self._entries)

    def __getitem__(self, place: int) -> Result:
        return self._result(self._entries[place])

    def __iter__(self) -> Iterator[Result]:
        return map(self._result, self._entries)

    def __repr__(self) -> str:
        counts: dict[str, int] = {}
        for entry in self._entries:
            counts[entry.trial.status] = counts.get(entry.trial.status, 0) + 1
        told = ", ".join(f"{count} {status}" for status, count in counts.items())
        return f"<ResultGrid of {len(self)} trials ({told}) in {self._path}>"

    @property
    def experiment_path(self) -> str:
        """The directory of the experiment."""
        return str(self._path)

    @property
    def filesystem(self) -> Any:
        """The fsspec file system in which ``experiment_path`` lies."""
        if isinstance(self._path, Remote):
            return self._path.filesystem
        from fsspec.implementations.local import LocalFileSystem

        return LocalFileSystem()

    @property
    def errors(self) -> list[Exception]:
        """Why trials failed, one for each that did."""
        return [self._error(entry) for entry in self._entries if entry.trial.status is TrialStatus.ERROR]

    @property
    def num_errors(self) -> int:
        """How many trials failed."""
        return sum(entry.trial.status is TrialStatus.ERROR for entry in self._entries)

    @property
    def num_terminated(self) -> int:
        """How many trials came to their end, by themselves or because somebody decided so."""
        return sum(entry.trial.status is TrialStatus.TERMINATED for entry in self._entries)

    def get_best_result(
        self,
        metric: str | None = None,
        mode: str | None = None,
        scope: str = "last",
        filter_nan_and_inf: bool = True,
    ) -> Result:
        """Return the result of the best trial.

        Parameters
        ----------
        metric, mode : str, optional
            Those of the search by default: the ``TuneConfig``'s, else the scheduler's or the searcher's.
        scope : str
            Which reports of a trial count: ``"last"``, ``"all"`` (its best), ``"avg"``, ``"last-5-avg"`` or
            ``"last-10-avg"``.
        filter_nan_and_inf : bool
            Whether reports without a finite number are left out. NaN never wins in any case.

        Raises
        ------
        ValueError
            If the metric or the mode is not known, or the scope is none of these.
        RuntimeError
            If no trial has such a report; the message says what there is.
        """
        metric, mode = self._asked(metric, mode)
        if scope not in SCOPES:
            raise ValueError(f"scope={scope!r}: choose one of {', '.join(SCOPES)}")
        sign = 1.0 if mode == "max" else -1.0
        scored = [
            (sign * value, -place, entry)
            for place, entry in enumerate(self._entries)
            if (value := self._value(entry, metric, mode, scope, filter_nan_and_inf)) is not None
        ]
        if not scored:
            names = sorted({key for entry in self._entries for key in entry.trial.last_result})
            raise RuntimeError(
                f"no trial has a number as {metric!r} in its reports; they have: {', '.join(names) or 'no reports'} "
                f"({self.num_errors} of {len(self)} trials failed)"
            )
        return self._result(max(scored, key=lambda item: item[:2])[2])

    def get_dataframe(self, filter_metric: str | None = None, filter_mode: str | None = None) -> pd.DataFrame:
        """Return a pandas frame with a row for each trial: its last report, or its best by a metric.

        Configurations are in the columns ``config/…``, with ``trial_id``, ``status`` and ``logdir`` beside them.
        """
        try:
            import pandas as pd
        except ImportError as error:
            raise ImportError('get_dataframe needs pandas: pip install "shoal[pandas]"') from error
        check_mode(filter_mode, optional=filter_metric is None)
        rows = []
        for entry in self._entries:
            row = entry.trial.last_result
            if filter_metric is not None and filter_mode is not None:
                row = self._best_row(entry, filter_metric, filter_mode) or row
            known = {"trial_id": entry.trial.trial_id, "status": str(entry.trial.status), "logdir": str(entry.place)}
            rows.append({**row, **known, "config": entry.config})
        return pd.json_normalize(rows, sep="/")

    def to_optuna(
        self, metric: str | Sequence[str] | None = None, mode: str | Sequence[str] | None = None
    ) -> optuna.Study:
        """Return the trials as a study of Optuna, whichever searcher made them, for its plots and measures.

        Parameters
        ----------
        metric, mode : str or sequence of str, optional
            Those of the search by default; several for several objectives.

        Returns
        -------
        optuna.Study
            In memory. A trial's values are of its last report, its intermediate values of all; trials that failed, or
            whose metric is not a finite number, are failed trials.

        Examples
        --------
        >>> from shoal import tune
        >>> grid = tune.Tuner(
        ...     lambda config: {"loss": config["x"] ** 2},
        ...     param_space={"x": tune.uniform(-1, 1)},
        ...     tune_config=tune.TuneConfig(metric="loss", mode="min", num_samples=4),
        ...     run_config=tune.RunConfig(verbose=0),
        ... ).fit()
        >>> study = grid.to_optuna()
        >>> len(study.trials), study.best_params == grid.get_best_result().config
        (4, True)
        """
        metrics = [metric] if isinstance(metric, str) or metric is None else list(metric)
        modes = [mode] * len(metrics) if isinstance(mode, str) or mode is None else list(mode)
        if len(metrics) != len(modes):
            raise ValueError(f"metric={metric!r}, mode={mode!r}: give as many modes as metrics, or one for all")
        asked = [self._asked(*pair) for pair in zip(metrics, modes, strict=True)]
        tried = [
            Tried(
                trial_id=entry.trial.trial_id,
                config=entry.config,
                last=entry.trial.last_result,
                rows=self._rows(entry),
                status=entry.trial.status,
                error=entry.trial.error,
            )
            for entry in self._entries
        ]
        name = self._path.name
        return study_of(tried, [name for name, _ in asked], [mode for _, mode in asked], self._space, name)

    def plot(self, kind: str, path: str | os.PathLike[str], metric: str | None = None, mode: str | None = None) -> Path:
        """Draw the search into a file and return its path.

        Parameters
        ----------
        kind : str
            ``"history"`` (value by trial, and the best so far), ``"parallel"`` (coordinates), ``"importance"`` (of
            parameters) or ``"curves"`` (value by report, a line a trial).
        path : str or path
            A ``.png``, ``.svg`` or ``.pdf`` file, or a page for a browser (``.html``). Needs
            ``pip install 'shoal[tune]'``.
        metric, mode : str, optional
            Those of the search by default.
        """
        return plot(self.to_optuna(metric, mode), kind, path)

    # ---- inside -----------------------------------------------------------------------------------------------------

    def _asked(self, metric: str | None, mode: str | None) -> tuple[str, str]:
        metric, mode = metric or self._metric, mode or self._mode
        if metric is None:
            raise ValueError(
                "which metric? The search has none: get_best_result(metric='loss', mode='min'), or "
                "TuneConfig(metric=..., mode=...)"
            )
        if mode is None:
            raise ValueError(f"is more of {metric!r} better, or less? Give mode='max' or 'min'")
        check_mode(mode)
        return metric, mode

    def _value(self, entry: Entry, metric: str, mode: str, scope: str, finite: bool) -> float | None:
        rows = [entry.trial.last_result] if scope == "last" else self._rows(entry)
        numbers = [value for row in rows if isinstance(value := lookup(row, metric), (int, float))]
        numbers = [value for value in numbers if not math.isnan(value) and not (finite and math.isinf(value))]
        return float(SCOPES[scope](numbers, mode == "max")) if numbers else None

    def _best_row(self, entry: Entry, metric: str, mode: str) -> dict[str, Any] | None:
        rows = [row for row in self._rows(entry) if isinstance(lookup(row, metric), (int, float))]
        rows = [row for row in rows if not math.isnan(lookup(row, metric))]
        sign = 1 if mode == "max" else -1
        return max(rows, key=lambda row: sign * lookup(row, metric), default=None)

    def _rows(self, entry: Entry) -> list[dict[str, Any]]:
        if not has_run(entry.place):
            return []
        with records_of(entry.place) as records:
            return effective_rows(records)

    def _result(self, entry: Entry) -> Result:
        error = self._error(entry) if entry.trial.status is TrialStatus.ERROR else None
        if not has_run(entry.place):  # it was never started
            return Result(metrics={}, path=str(entry.place), config=entry.config, error=error)
        filesystem = entry.place.filesystem if isinstance(entry.place, Remote) else None
        result = Result.from_path(str(entry.place), filesystem)
        metrics = {**entry.trial.last_result, "trial_id": entry.trial.trial_id}
        unfinished = entry.trial.status not in {TrialStatus.TERMINATED, TrialStatus.ERROR}
        return replace(result, metrics=metrics, config=entry.config, error=error, interrupted=unfinished)

    def _error(self, entry: Entry) -> Exception:
        if isinstance(entry.error, Exception):
            return entry.error
        text = entry.trial.error
        file = entry.place / "error.txt"
        if isinstance(file, Path) and file.exists():
            text = file.read_text()
        return TrainingFailedError(text, path=str(entry.place))


class TuneError(ShoalError):
    """A search could not go on: its scheduler, its searcher or a stopper raised, or nobody reports its metric."""
