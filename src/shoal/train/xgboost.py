"""XGBoost on many workers: each trains on its share of the rows, and all have the same booster."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
import xgboost

from shoal._core.contracts import Framework, WorkerSide
from shoal._runtime.requirements import require
from shoal.train.boosting import BoosterReports
from shoal.train.checkpoint import Checkpoint
from shoal.train.trainer import DataParallelTrainer, TrainFunction, checked

if TYPE_CHECKING:
    from shoal.train.data.shard import DataShard

__all__ = ["RayTrainReportCallback", "ReportCallback", "XGBoostConfig", "XGBoostTrainer", "prepare_dmatrix"]


@dataclass(frozen=True)
class XGBoostConfig(Framework):
    """How the workers' collective is made.

    Parameters
    ----------
    xgboost_communicator : str
        ``"rabit"``, XGBoost's own.
    """

    xgboost_communicator: str = "rabit"

    preload: ClassVar[tuple[str, ...]] = ("xgboost", "shoal.train.xgboost", "shoal.train.result")

    def __post_init__(self) -> None:
        if self.xgboost_communicator != "rabit":
            raise ValueError(f"xgboost_communicator={self.xgboost_communicator!r}: there is only 'rabit'")

    def start(self, worker: WorkerSide) -> None:
        """Join the collective, whose tracker is in rank 0."""
        from xgboost.tracker import RabitTracker

        ranks, offer = worker.ranks, b""
        if ranks.world_size == 1:
            return
        if ranks.world_rank == 0:
            # Kept by the process: it is gone with it, and not before another rank that still needs it.
            globals()["_tracker"] = tracker = RabitTracker(ranks.world_size, worker.address, sortby="task")
            tracker.start()
            offer = msgspec.json.encode(tracker.worker_args())
        arguments = msgspec.json.decode(worker.gather("xgboost tracker", offer)[0])
        xgboost.collective.init(dmlc_task_id=f"{ranks.world_rank:09d}", **arguments)


class XGBoostTrainer(DataParallelTrainer):
    """Runs a function that calls ``xgboost.train()`` on every worker, with XGBoost's collective around them.

    Parameters
    ----------
    train_loop_per_worker : callable
        A function without arguments, or with one: the configuration, a dict.
    xgboost_config : XGBoostConfig, optional
        How the collective is made.
    **settings
        As for :class:`~shoal.train.DataParallelTrainer`.

    Examples
    --------
    >>> import numpy as np
    >>> from shoal import train
    >>> from shoal.train.xgboost import ReportCallback, XGBoostTrainer, prepare_dmatrix
    >>> def train_func(config):
    ...     import xgboost
    ...     rows = prepare_dmatrix(train.get_dataset_shard("train"), label="y")
    ...     xgboost.train(
    ...         {"max_depth": 2}, rows, num_boost_round=3, evals=[(rows, "train")], callbacks=[ReportCallback()]
    ...     )
    >>> trainer = XGBoostTrainer(
    ...     train_func,
    ...     train_loop_config={},
    ...     datasets={"train": {"x": np.arange(64.0), "y": np.arange(64.0) > 20}},
    ...     scaling_config=train.ScalingConfig(num_workers=2),
    ...     run_config=train.RunConfig(verbose=0, log_to_driver=None),
    ... )
    >>> booster = ReportCallback.get_model(trainer.fit().checkpoint)
    >>> booster.num_boosted_rounds()
    3
    """

    def __init__(
        self,
        train_loop_per_worker: TrainFunction,
        *,
        xgboost_config: XGBoostConfig | None = None,
        **settings: Any,
    ):
        require("xgboost", extra="xgboost", tested="2.1", trainer="XGBoostTrainer")
        framework = checked("xgboost_config", xgboost_config, XGBoostConfig) or XGBoostConfig()
        super().__init__(train_loop_per_worker, framework=framework, **settings)


class ReportCallback(xgboost.callback.TrainingCallback):
    """Reports the evaluations of each round, and the booster as a checkpoint.

    Parameters
    ----------
    metrics, filename, frequency, checkpoint_at_end, results_postprocessing_fn
        See :class:`shoal.train.boosting.BoosterReports`. Evaluations are named ``"<data set>-<metric>"``.
    """

    def __init__(
        self,
        metrics: str | list[str] | Mapping[str, str] | None = None,
        filename: str = "model.ubj",
        frequency: int = 0,
        checkpoint_at_end: bool = True,
        results_postprocessing_fn: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
    ):
        super().__init__()
        self._reports = BoosterReports(metrics, filename, frequency, checkpoint_at_end, results_postprocessing_fn)

    def after_iteration(self, model: Any, epoch: int, evals_log: Mapping[str, Mapping[str, Any]]) -> bool:
        """Report a round."""
        found = {f"{data}-{name}": values[-1] for data, log in evals_log.items() for name, values in log.items()}
        found = {name: value[0] if isinstance(value, tuple) else value for name, value in found.items()}
        self._reports.round_over(epoch, found, model.save_model)
        return False

    def after_training(self, model: Any) -> Any:
        """Report the booster."""
        self._reports.training_over(model.save_model)
        return model

    @classmethod
    def get_model(cls, checkpoint: Checkpoint, filename: str = "model.ubj") -> xgboost.Booster:
        """Return the booster of a checkpoint."""
        booster = xgboost.Booster()
        with checkpoint.as_directory() as directory:
            booster.load_model(str(Path(directory, filename)))
        return booster


RayTrainReportCallback = ReportCallback  # the name that scripts bring along


def prepare_dmatrix(
    shard: DataShard, *, label: str | None = None, weight: str | None = None, **settings: Any
) -> xgboost.DMatrix:
    """Return this worker's share of a data set as a ``DMatrix``.

    Parameters
    ----------
    shard : DataShard
        As :func:`~shoal.train.get_dataset_shard` returns it.
    label, weight : str, optional
        The columns that are labels and weights; all others are features.
    **settings
        Further parameters of ``xgboost.DMatrix``.
    """
    frame = shard.materialize("pandas")
    labels, weights = ((frame.pop(name) if name is not None else None) for name in (label, weight))
    return xgboost.DMatrix(frame, label=labels, weight=weights, **settings)
