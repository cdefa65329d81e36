"""Train a small convolutional network on handwritten digits with two workers, and draw its learning curve."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from shoal import train
from shoal.train import Checkpoint, FailureConfig, Result, RunConfig, ScalingConfig
from shoal.train.torch import TorchTrainer


def make_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(32 * 4 * 4, 10),
    )


def load_data() -> tuple[TensorDataset, TensorDataset]:
    images, labels = load_digits(return_X_y=True)
    parts = train_test_split(images / 16.0, labels, test_size=0.25, random_state=0, stratify=labels)
    x_train, x_test, y_train, y_test = (torch.as_tensor(part) for part in parts)
    shape = (-1, 1, 8, 8)
    return (
        TensorDataset(x_train.float().reshape(shape), y_train),
        TensorDataset(x_test.float().reshape(shape), y_test),
    )


def accuracy(model: nn.Module, data: TensorDataset) -> float:
    images, labels = data.tensors
    model.eval()
    with torch.no_grad():
        correct = (model(images).argmax(1) == labels).float().mean().item()
    model.train()
    return correct


def train_func(config: dict) -> None:
    torch.manual_seed(0)
    train_data, test_data = load_data()
    model = train.torch.prepare_model(make_model())
    loader = train.torch.prepare_data_loader(DataLoader(train_data, batch_size=config["batch_size"], shuffle=True))
    optimizer = torch.optim.Adam(model.parameters(), lr=config["lr"])
    begin = 0
    if checkpoint := train.get_checkpoint():  # after a failure
        with checkpoint.as_directory() as directory:
            state = torch.load(Path(directory, "state.pt"))
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        begin = state["epoch"]
        loader.set_epoch(begin)
    for epoch in range(begin, config["epochs"]):
        began, samples, total = time.perf_counter(), 0, 0.0
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            samples += len(labels)
            total += loss.item() * len(labels)
        workers = train.get_context().get_world_size()
        speed = samples * workers / (time.perf_counter() - began)
        directory = Path(train.get_context().get_trial_dir())
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch + 1}
        torch.save(state, directory / "state.pt")
        train.report(
            {
                "epoch": epoch + 1,
                "loss": total / samples,
                "test_accuracy": accuracy(model, test_data),
                "samples_per_s": round(speed),
            },
            checkpoint=Checkpoint.from_directory(directory),
        )


def draw_learning_curve(result: Result) -> Path:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    rows = result.metrics_dataframe
    figure, loss_axes = plt.subplots(figsize=(7, 4), layout="constrained")
    loss_axes.plot(rows["epoch"], rows["loss"], color="tab:orange", label="training loss")
    loss_axes.set(xlabel="epoch", ylabel="training loss", title="Digits, two workers")
    accuracy_axes = loss_axes.twinx()
    accuracy_axes.plot(rows["epoch"], rows["test_accuracy"], color="tab:blue", label="test accuracy")
    accuracy_axes.set(ylabel="test accuracy", ylim=(0, 1.02))
    figure.legend(loc="center right", bbox_to_anchor=(0.88, 0.5))
    path = Path(result.path, "learning_curve.png")
    figure.savefig(path, dpi=120)
    return path


def make_trainer(function=train_func, epochs: int = 15, **run) -> TorchTrainer:
    return TorchTrainer(
        function,
        train_loop_config={"lr": 2e-3, "batch_size": 32, "epochs": epochs},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(failure_config=FailureConfig(max_failures=1), **run),
    )


def main() -> int:
    result = make_trainer().fit()
    if result.interrupted:
        print(f"interrupted; what there is lies in {result.path}")
        return 130
    print(f"test accuracy:  {result.metrics['test_accuracy']:.3f}")
    print(f"run directory:  {result.path}")
    print(f"learning curve: {draw_learning_curve(result)}")
    return 0 if result.metrics["test_accuracy"] >= 0.95 else 1


if __name__ == "__main__":
    sys.exit(main())
