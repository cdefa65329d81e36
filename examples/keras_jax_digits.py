"""Train a Keras 3 model with two workers on its JAX back end: ``fit()`` spreads each batch over the processes."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from shoal import train
from shoal.train import Checkpoint, FailureConfig, RunConfig, ScalingConfig
from shoal.train.jax import JaxTrainer


def train_func(config: dict) -> None:
    os.environ["KERAS_BACKEND"] = "jax"  # before the import
    import keras

    context = train.get_context()
    rank, world_size = context.get_world_rank(), context.get_world_size()
    if world_size > 1:  # each worker gives its own rows
        spread = keras.distribution.DataParallel(auto_shard_dataset=False)
        keras.distribution.set_distribution(spread)
    images, labels = load_digits(return_X_y=True)
    parts = train_test_split(images.astype("float32") / 16, labels, test_size=0.25, random_state=0, stratify=labels)
    x_train, x_test, y_train, y_test = parts
    even = len(x_train) // world_size * world_size  # all workers take the same number of steps
    mine = slice(rank, even, world_size)

    keras.utils.set_random_seed(0)  # the same on every worker, also for the weights that loading replaces
    begin = 0
    if checkpoint := train.get_checkpoint():
        with checkpoint.as_directory() as directory:
            model = keras.models.load_model(Path(directory, "model.keras"))
            begin = int(Path(directory, "epoch").read_text()) + 1
    else:
        layers = keras.layers
        model = keras.Sequential([layers.Input((64,)), layers.Dense(128, activation="relu"), layers.Dense(10)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(3e-3), loss, metrics=["accuracy"])
    for epoch in range(begin, config["epochs"]):
        keras.utils.set_random_seed(epoch)
        history = model.fit(x_train[mine], y_train[mine], batch_size=32, verbose=0).history
        predicted = model.predict_on_batch(x_test[: len(x_test) // world_size * world_size])
        accuracy = float((predicted.argmax(1) == y_test[: len(predicted)]).mean())
        with train.checkpoint_dir() as directory:
            model.save(directory / "model.keras")  # by all: Keras has the processes agree on what is saved
            (directory / "epoch").write_text(str(epoch))
            metrics = {"epoch": epoch, "loss": history["loss"][-1], "test_accuracy": accuracy}
            train.report(metrics, checkpoint=Checkpoint.from_directory(directory))


def make_trainer(function=train_func, epochs: int = 20, **run) -> JaxTrainer:
    return JaxTrainer(
        function,
        train_loop_config={"epochs": epochs},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(failure_config=FailureConfig(max_failures=1), **run),
    )


if __name__ == "__main__":
    accuracy = make_trainer().fit().metrics["test_accuracy"]
    print(f"test accuracy: {accuracy:.3f}")
    sys.exit(accuracy < 0.95)
