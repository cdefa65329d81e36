"""The short way to run a search in a test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from shoal import tune
from shoal.tune import ResultGrid, RunConfig, TuneConfig, Tuner


def tuner(trainable: Any, space: Any = None, *, run: dict[str, Any] | None = None, **config: Any) -> Tuner:
    settings = {"metric": "score", "mode": "max", **config}
    return Tuner(
        trainable,
        param_space={"a": tune.uniform(0, 1)} if space is None else space,
        tune_config=TuneConfig(**settings),
        run_config=RunConfig(**{"verbose": 0, **(run or {})}),
    )


def search(trainable: Any, space: Any = None, *, run: dict[str, Any] | None = None, **config: Any) -> ResultGrid:
    return tuner(trainable, space, run=run, **config).fit()


def directories(grid: ResultGrid) -> list[Path]:
    return sorted(path for path in Path(grid.experiment_path).iterdir() if path.is_dir())
