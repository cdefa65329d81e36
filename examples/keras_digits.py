"""Train a Keras model on handwritten digits with two workers, under TensorFlow's MultiWorkerMirroredStrategy."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from shoal import train
from shoal.train import FailureConfig, RunConfig, ScalingConfig
from shoal.train.tensorflow import TensorflowTrainer


def load_data() -> list[np.ndarray]:
    images, labels = load_digits(return_X_y=True)
    return train_test_split((images / 16.0).astype("float32"), labels, test_size=0.25, random_state=0, stratify=labels)


def train_func(config: dict) -> None:
    import tensorflow as tf

    from shoal.train.tensorflow import prepare_dataset_shard
    from shoal.train.tensorflow.keras import ReportCheckpointCallback

    x_train, x_test, y_train, y_test = load_data()
    context = train.get_context()
    rank, size = context.get_world_rank(), context.get_world_size()
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    begin, checkpoint = 0, train.get_checkpoint()
    with strategy.scope():
        tf.keras.utils.set_random_seed(0)
        if checkpoint is None:
            dense = tf.keras.layers.Dense
            model = tf.keras.Sequential([tf.keras.layers.Input((64,)), dense(128, "relu"), dense(10)])
            loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            model.compile(tf.keras.optimizers.Adam(3e-3), loss, metrics=["accuracy"])
        else:
            with checkpoint.as_directory() as directory:
                model = tf.keras.models.load_model(Path(directory, "model.keras"))
            begin = int(model.optimizer.iterations.numpy()) // config["steps"]
    mine = tf.data.Dataset.from_tensor_slices((x_train[rank::size], y_train[rank::size]))
    test = tf.data.Dataset.from_tensor_slices((x_test, y_test)).batch(64)
    model.fit(
        prepare_dataset_shard(mine.shuffle(1000, seed=rank).repeat().batch(32)),
        validation_data=prepare_dataset_shard(test),
        initial_epoch=begin,
        epochs=config["epochs"],
        steps_per_epoch=config["steps"],
        verbose=0,
        callbacks=[ReportCheckpointCallback()],
    )


def make_trainer(function=train_func, epochs: int = 20, **run) -> TensorflowTrainer:
    return TensorflowTrainer(
        function,
        train_loop_config={"epochs": epochs, "steps": 21},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(failure_config=FailureConfig(max_failures=1), **run),
    )


if __name__ == "__main__":
    accuracy = make_trainer().fit().metrics["val_accuracy"]
    print(f"test accuracy: {accuracy:.3f}")
    sys.exit(accuracy < 0.95)
