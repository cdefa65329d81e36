"""Run the body of a script for HuggingFace Accelerate, with its Accelerator unchanged, on two workers."""

from __future__ import annotations

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
    from accelerate import Accelerator
    from accelerate.utils import GradientAccumulationPlugin, set_seed

    accelerator = Accelerator(gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=2))
    set_seed(0)
    train_data, test_data = load_data()
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    model, optimizer, loader, test_loader = accelerator.prepare(
        model, optimizer, DataLoader(train_data, batch_size=32, shuffle=True), DataLoader(test_data, batch_size=128)
    )
    begin = 0
    if checkpoint := train.get_checkpoint():
        with checkpoint.as_directory() as directory:
            accelerator.load_state(str(directory))
            begin = int(Path(directory, "epoch").read_text()) + 1
    for epoch in range(begin, config["epochs"]):
        loader.set_epoch(epoch)
        model.train()
        for images, labels in loader:
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(images), labels)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
        model.eval()
        hits = []
        with torch.no_grad():
            for images, labels in test_loader:
                hits.append(accelerator.gather_for_metrics((model(images).argmax(1) == labels).float()))
        with train.checkpoint_dir() as directory:
            accelerator.save_state(str(directory))
            (directory / "epoch").write_text(str(epoch))
            metrics = {"epoch": epoch, "loss": loss.item(), "test_accuracy": torch.cat(hits).mean().item()}
            train.report(metrics, checkpoint=Checkpoint.from_directory(directory))


def make_trainer(function=train_func, epochs: int = 25, **run) -> TorchTrainer:
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
