"""TensorFlow and Keras: a mirrored model on two workers, killed and gone on with."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shoal import train
from shoal.train import FailureConfig, RunConfig, ScalingConfig
from shoal.train.tensorflow import TensorflowTrainer


def script(config: dict[str, Any]) -> None:
    import numpy as np
    import tensorflow as tf

    from shoal.train.tensorflow import prepare_dataset_shard
    from shoal.train.tensorflow.keras import ReportCheckpointCallback

    class DieOnce(tf.keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            dies, rank = config.get("dies"), train.get_context().get_world_rank()
            if dies and epoch == 2 and rank == 1 and not os.path.exists(dies):
                Path(dies).touch()
                os._exit(3)

    context = train.get_context()
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    begin, checkpoint = 0, train.get_checkpoint()
    with strategy.scope():
        if checkpoint is None:
            tf.keras.utils.set_random_seed(1)
            model = tf.keras.Sequential([tf.keras.layers.Input((1,)), tf.keras.layers.Dense(1)])
            model.compile(tf.keras.optimizers.SGD(0.2), "mse")
        else:
            with checkpoint.as_directory() as directory:
                model = tf.keras.models.load_model(Path(directory, "model.keras"))
            begin = config["epochs_done"](checkpoint)
    inputs = np.linspace(-1, 1, 64, dtype="float32").reshape(64, 1)[
        context.get_world_rank() :: context.get_world_size()
    ]
    rows = tf.data.Dataset.from_tensor_slices((inputs, 3 * inputs + 1)).repeat().batch(8)
    model.fit(
        prepare_dataset_shard(rows),
        initial_epoch=begin,
        epochs=6,
        steps_per_epoch=8,
        verbose=0,
        callbacks=[DieOnce(), ReportCheckpointCallback()],
    )


def epochs_done(checkpoint: train.Checkpoint) -> int:
    return int(Path(str(checkpoint.path)).name.split("_")[1].split(".")[0])  # one checkpoint an epoch, counted from 1


def fit(workers: int, config: dict[str, Any] | None = None, **run: Any) -> train.Result:
    return TensorflowTrainer(
        script,
        train_loop_config={"epochs_done": epochs_done, **(config or {})},
        scaling_config=ScalingConfig(num_workers=workers),
        run_config=RunConfig(verbose=0, log_to_driver=None, **run),
    ).fit()


def test_a_mirrored_model_learns_and_a_killed_worker_is_made_up_for(tmp_path: Path):
    undisturbed = fit(2)
    assert list(undisturbed.metrics_dataframe["epoch"]) == list(range(6))
    assert undisturbed.metrics["loss"] < 0.01
    with undisturbed.checkpoint.as_directory() as directory:
        assert "model.keras" in os.listdir(directory)
    result = fit(2, {"dies": str(tmp_path / "mark")}, failure_config=FailureConfig(max_failures=1))
    assert [attempt.checkpoint for attempt in result.attempts] == [0, 2]
    assert list(result.metrics_dataframe["epoch"]) == list(range(6))
    assert result.metrics["loss"] == pytest.approx(undisturbed.metrics["loss"], abs=0.005)


MISTAKES = """
import pytest
import tensorflow as tf
from shoal.train.tensorflow import prepare_dataset_shard
from shoal.train.tensorflow.keras import ReportCheckpointCallback
with pytest.raises(ValueError, match="checkpoint_on has 'never': choose from epoch_end"):
    ReportCheckpointCallback(checkpoint_on="never")
with pytest.raises(ValueError, match="metrics has 'acc', but Keras logs: loss"):
    ReportCheckpointCallback(metrics="acc").on_epoch_end(0, {"loss": 1.0})
share = prepare_dataset_shard(tf.data.Dataset.range(4))
assert share.options().experimental_distribute.auto_shard_policy.name == "OFF"
"""


def test_mistakes_are_told_and_shares_are_left_alone():
    # In a process of its own: TensorFlow and triton, which torch loads, bring LLVM each and do not bear each other.
    done = subprocess.run([sys.executable, "-c", MISTAKES], capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr


def shard_as_tensors(config: dict[str, Any]) -> None:
    rows = train.get_dataset_shard().to_tf(batch_size=4)
    batches = [list(rows), list(rows)]
    words = [value for batch in batches[0] for value in batch["word"].numpy().tolist()]
    numbers = sorted(int(value) for batch in batches[1] for value in batch["x"].numpy())
    train.report({"words": sorted(word.decode() for word in words), "numbers": numbers, "kind": str(rows.element_spec)})


def test_a_shard_is_a_data_set_of_tensors():
    import numpy as np

    words = np.array(["a", "b", "c", "d", "e", "f"], dtype=object)
    result = TensorflowTrainer(
        shard_as_tensors,
        train_loop_config={},
        datasets={"train": {"x": np.arange(6, dtype="int32"), "word": words}},
        scaling_config=ScalingConfig(num_workers=1),
        run_config=RunConfig(verbose=0),
    ).fit()
    assert result.metrics["words"] == list("abcdef")
    assert result.metrics["numbers"] == [0, 1, 2, 3, 4, 5]
    assert "int32" in result.metrics["kind"] and "string" in result.metrics["kind"]
