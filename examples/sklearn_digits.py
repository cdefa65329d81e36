"""Train scikit-learn, or anything else: a plain function on two workers, here with weights averaged after each pass."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier
from sklearn.model_selection import train_test_split

from shoal import train
from shoal.train import Checkpoint, DataConfig, DataParallelTrainer, FailureConfig, RunConfig, ScalingConfig


def train_func(config: dict) -> None:
    shard, test = train.get_dataset_shard("train"), train.get_dataset_shard("test").materialize()
    model, begin = SGDClassifier(random_state=0, alpha=1e-3), 0
    if checkpoint := train.get_checkpoint():
        with checkpoint.as_directory() as directory:
            model, begin = pickle.loads(Path(directory, "model.pkl").read_bytes())
    shard.set_epoch(begin)
    for epoch in range(begin, config["epochs"]):
        for batch in shard.iter_batches(batch_size=64):
            model.partial_fit(batch["image"], batch["label"], classes=np.arange(10))
        model.coef_, model.intercept_ = averaged(model.coef_), averaged(model.intercept_)
        metrics = {"epoch": epoch, "test_accuracy": model.score(test["image"], test["label"])}
        with train.checkpoint_dir() as directory:
            (directory / "model.pkl").write_bytes(pickle.dumps((model, epoch + 1)))
            train.report(metrics, checkpoint=Checkpoint.from_directory(directory))


def averaged(values: np.ndarray) -> np.ndarray:
    """Return the mean over all workers. It goes through the driver, so it is for small arrays."""
    return np.mean(train.collective.all_gather(values), axis=0)


def make_trainer(function=train_func, epochs: int = 20, **run) -> DataParallelTrainer:
    images, labels = load_digits(return_X_y=True)
    x_train, x_test, y_train, y_test = train_test_split(images / 16.0, labels, random_state=0, stratify=labels)
    return DataParallelTrainer(
        function,
        train_loop_config={"epochs": epochs},
        datasets={"train": {"image": x_train, "label": y_train}, "test": {"image": x_test, "label": y_test}},
        dataset_config=DataConfig(datasets_to_split=["train"], shuffle=["train"]),
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(failure_config=FailureConfig(max_failures=1), **run),
    )


if __name__ == "__main__":
    accuracy = make_trainer().fit().metrics["test_accuracy"]
    print(f"test accuracy: {accuracy:.3f}")
    sys.exit(accuracy < 0.92)
