"""The trainer for TensorFlow."""

from __future__ import annotations

import importlib.util
import json
import os
from dataclasses import dataclass
from typing import Any, ClassVar

import msgspec

from shoal._core.contracts import Framework, WorkerSide
from shoal._runtime.requirements import require
from shoal.train.ports import held_address
from shoal.train.trainer import DataParallelTrainer, TrainFunction, checked


@dataclass(frozen=True)
class TensorflowConfig(Framework):
    """Sets ``TF_CONFIG``, by which TensorFlow's strategies for several workers find the others.

    Each worker is a fresh interpreter: to import TensorFlow starts threads, and a process with threads is not forked.

    Parameters
    ----------
    keras_2 : bool, optional
        Whether ``tf.keras`` is Keras 2 (the package tf-keras). By default it is where there are several workers and
        tf-keras is installed: ``fit()`` of Keras 3 cannot train under ``MultiWorkerMirroredStrategy`` (Keras 3.15
        raises "Attempt to convert a value (PerReplica"); training loops of one's own can.
    """

    keras_2: bool | None = None

    forkable: ClassVar[bool] = False

    def start(self, worker: WorkerSide) -> None:
        """Choose a port, and tell the others."""
        with held_address(worker) as address:  # TensorFlow listens there itself, when the function makes its strategy
            places = worker.gather("tensorflow", msgspec.json.encode(address))
        cluster = {"worker": [msgspec.json.decode(place) for place in places]}
        task = {"type": "worker", "index": worker.ranks.world_rank}
        os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": task})
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
        if self._uses_keras_2(worker.ranks.world_size):
            os.environ["TF_USE_LEGACY_KERAS"] = "1"  # what tf.keras is from its first import on

    def _uses_keras_2(self, workers: int) -> bool:
        if self.keras_2 is not None:
            return self.keras_2
        return workers > 1 and importlib.util.find_spec("tf_keras") is not None


class TensorflowTrainer(DataParallelTrainer):
    """Runs a function on every worker in which ``tf.distribute.MultiWorkerMirroredStrategy()`` finds the others.

    Parameters
    ----------
    train_loop_per_worker : callable
        A function without arguments, or with one: the configuration, a dict.
    tensorflow_config : TensorflowConfig, optional
        How the workers find each other.
    **settings
        As for :class:`~shoal.train.DataParallelTrainer`.

    Examples
    --------
    >>> from shoal.train.tensorflow import TensorflowTrainer
    >>> def train_func(config):
    ...     import tensorflow as tf
    ...     from shoal.train.tensorflow.keras import ReportCheckpointCallback
    ...     with tf.distribute.MultiWorkerMirroredStrategy().scope():
    ...         model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    ...         model.compile("sgd", "mse")
    ...     model.fit(..., epochs=3, callbacks=[ReportCheckpointCallback()])
    >>> trainer = TensorflowTrainer(train_func, train_loop_config={"lr": 0.1})
    """

    def __init__(
        self,
        train_loop_per_worker: TrainFunction,
        *,
        tensorflow_config: TensorflowConfig | None = None,
        **settings: Any,
    ):
        for package in ("tensorflow", "tensorflow-cpu"):
            try:
                require(package, extra="tensorflow", tested="2.16", trainer="TensorflowTrainer")
                break
            except ImportError:
                if package == "tensorflow-cpu":
                    raise
        framework = checked("tensorflow_config", tensorflow_config, TensorflowConfig) or TensorflowConfig()
        super().__init__(train_loop_per_worker, framework=framework, **settings)
