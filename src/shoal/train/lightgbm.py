"""LightGBM on many workers: each trains on its share of the rows, and all have the same booster."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import lightgbm
import msgspec

from shoal._core.contracts import Framework, WorkerSide
from shoal._runtime.requirements import require
from shoal.train.boosting import BoosterReports
from shoal.train.checkpoint import Checkpoint
from shoal.train.trainer import DataParallelTrainer, TrainFunction, checked

__all__ = ["LightGBMConfig", "LightGBMTrainer", "RayTrainReportCallback", "ReportCallback", "get_network_params"]

_network: dict[str, Any] = {}
_held: list[socket.socket] = []


@dataclass(frozen=True)
class LightGBMConfig(Framework):
    """Finds a port for each worker, and tells all of them."""

    preload: ClassVar[tuple[str, ...]] = ("lightgbm", "shoal.train.lightgbm", "shoal.train.result")

    def start(self, worker: WorkerSide) -> None:
        """Choose a port; it is held until the function asks for the parameters."""
        held = socket.socket()
        held.bind(("", 0))
        port = held.getsockname()[1]
        places = worker.gather("lightgbm machines", msgspec.json.encode([worker.address, port]))
        machines = ",".join(f"{address}:{number}" for address, number in map(msgspec.json.decode, places))
        _network.clear()
        _held[:] = [held]
        if worker.ranks.world_size > 1:
            _network.update(machines=machines, local_listen_port=port, num_machines=worker.ranks.world_size)


def get_network_params() -> dict[str, Any]:
    """Return the parameters by which this worker's ``lightgbm.train()`` finds the others; none for a lone worker.

    Examples
    --------
    >>> from shoal.train.lightgbm import get_network_params
    >>> params = {"objective": "binary", "tree_learner": "data", "pre_partition": True, **get_network_params()}
    """
    for held in _held:  # LightGBM itself listens there from now on
        held.close()
    _held.clear()
    return dict(_network)


class LightGBMTrainer(DataParallelTrainer):
    """Runs a function that calls ``lightgbm.train()`` on every worker.

    The function passes :func:`get_network_params` on, with ``tree_learner="data"`` and ``pre_partition=True``: each
    worker has its own rows.

    Parameters
    ----------
    train_loop_per_worker : callable
        A function without arguments, or with one: the configuration, a dict.
    lightgbm_config : LightGBMConfig, optional
        How workers find each other.
    **settings
        As for :class:`~shoal.train.DataParallelTrainer`.

    Examples
    --------
    >>> import numpy as np
    >>> from shoal import train
    >>> from shoal.train.lightgbm import LightGBMTrainer, ReportCallback, get_network_params
    >>> def train_func():
    ...     import lightgbm
    ...     frame = train.get_dataset_shard("train").materialize("pandas")
    ...     rows = lightgbm.Dataset(frame[["x"]], frame["y"])
    ...     params = {"tree_learner": "data", "pre_partition": True, "verbose": -1, **get_network_params()}
    ...     lightgbm.train(
    ...         params, rows, 3, valid_sets=[rows], valid_names=["train"], callbacks=[ReportCallback()]
    ...     )
    >>> trainer = LightGBMTrainer(
    ...     train_func,
    ...     datasets={"train": {"x": np.arange(200.0), "y": np.arange(200.0) > 60}},
    ...     scaling_config=train.ScalingConfig(num_workers=2),
    ...     run_config=train.RunConfig(verbose=0, log_to_driver=None),
    ... )
    >>> ReportCallback.get_model(trainer.fit().checkpoint).num_trees()
    3
    """

    def __init__(
        self,
        train_loop_per_worker: TrainFunction,
        *,
        lightgbm_config: LightGBMConfig | None = None,
        **settings: Any,
    ):
        require("lightgbm", extra="lightgbm", tested="4.3", trainer="LightGBMTrainer")
        framework = checked("lightgbm_config", lightgbm_config, LightGBMConfig) or LightGBMConfig()
        super().__init__(train_loop_per_worker, framework=framework, **settings)


class ReportCallback:
    """Reports the evaluations of each round, and the booster as a checkpoint.

    Parameters
    ----------
    metrics, filename, frequency, checkpoint_at_end, results_postprocessing_fn
        See :class:`shoal.train.boosting.BoosterReports`. Evaluations are named ``"<data set>-<metric>"``.
    """

    order = 20  # after LightGBM's own, so that what stops early has its say first

    def __init__(
        self,
        metrics: str | list[str] | Mapping[str, str] | None = None,
        filename: str = "model.txt",
        frequency: int = 0,
        checkpoint_at_end: bool = True,
        results_postprocessing_fn: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
    ):
        self._reports = BoosterReports(metrics, filename, frequency, checkpoint_at_end, results_postprocessing_fn)

    def __call__(self, env: lightgbm.callback.CallbackEnv) -> None:
        """Report a round."""
        found = {f"{row[0]}-{row[1]}": row[2] for row in env.evaluation_result_list or ()}
        self._reports.round_over(env.iteration - env.begin_iteration, found, env.model.save_model)
        if env.iteration + 1 == env.end_iteration:
            self._reports.training_over(env.model.save_model)

    @classmethod
    def get_model(cls, checkpoint: Checkpoint, filename: str = "model.txt") -> lightgbm.Booster:
        """Return the booster of a checkpoint."""
        with checkpoint.as_directory() as directory:
            return lightgbm.Booster(model_file=str(Path(directory, filename)))


RayTrainReportCallback = ReportCallback  # the name that scripts bring along
