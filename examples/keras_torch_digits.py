"""Train a Keras 3 model with two workers on its PyTorch back end: a Keras layer is a torch module, so DDP wraps it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from shoal import train
from shoal.train import Checkpoint, FailureConfig, RunConfig, ScalingConfig
from shoal.train.torch import TorchTrainer


def load_data() -> tuple[TensorDataset, TensorDataset]:
    images, labels = load_digits(return_X_y=True)
    parts = train_test_split(images / 16.0, labels, test_size=0.25, random_state=0, stratify=labels)
    x_train, x_test, y_train, y_test = (torch.as_tensor(part) for part in parts)
    return TensorDataset(x_train.float(), y_train), TensorDataset(x_test.float(), y_test)


def train_func(config: dict) -> None:
    os.environ["KERAS_BACKEND"] = "torch"  # before the import
    import keras

    keras.utils.set_random_seed(0)
    train_data, test_data = load_data()
    layers = keras.layers
    network = keras.Sequential([layers.Input((64,)), layers.Dense(128, activation="relu"), layers.Dense(10)])
    model = train.torch.prepare_model(network)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    begin = 0
    if checkpoint := train.get_checkpoint():
        with checkpoint.as_directory() as directory:
            network.load_weights(Path(directory, "network.weights.h5"))
            optimizer.load_state_dict(torch.load(Path(directory, "optimizer.pt")))
            begin = int(Path(directory, "epoch").read_text()) + 1
    loader = train.torch.prepare_data_loader(DataLoader(train_data, batch_size=32, shuffle=True))
    loader.set_epoch(begin)
    images, labels = test_data.tensors
    for epoch in range(begin, config["epochs"]):
        for batch, targets in loader:
            loss = nn.functional.cross_entropy(model(batch), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            accuracy = (network(images).argmax(1) == labels).float().mean().item()
        with train.checkpoint_dir() as directory:
            network.save_weights(directory / "network.weights.h5")
            torch.save(optimizer.state_dict(), directory / "optimizer.pt")
            (directory / "epoch").write_text(str(epoch))
            metrics = {"epoch": epoch, "loss": loss.item(), "test_accuracy": accuracy}
            train.report(metrics, checkpoint=Checkpoint.from_directory(directory))


def make_trainer(function=train_func, epochs: int = 20, **run) -> TorchTrainer:
    return TorchTrainer(
        function,
        train_loop_config={"epochs": epochs},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(failure_config=FailureConfig(max_failures=1), **run),
    )


if __name__ == "__main__":
    accuracy = make_trainer().fit().metrics["test_accuracy"]
    print(f"test accuracy: {accuracy:.3f}")
    sys.exit(accuracy < 0.95)
