"""Train with DeepSpeed on two workers, the optimizer's state shared out between them (ZeRO stage 1).

On CPUs DeepSpeed exchanges tensors with gloo. Needs ``pip install deepspeed``.
"""

from __future__ import annotations

import sys

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from shoal import train
from shoal.train import Checkpoint, FailureConfig, RunConfig, ScalingConfig
from shoal.train.torch import TorchTrainer

SETTINGS = {
    "train_micro_batch_size_per_gpu": 32,
    "optimizer": {"type": "Adam", "params": {"lr": 3e-3, "torch_adam": True}},
    "zero_optimization": {"stage": 1},
}


def load_data() -> tuple[TensorDataset, TensorDataset]:
    images, labels = load_digits(return_X_y=True)
    parts = train_test_split(images / 16.0, labels, test_size=0.25, random_state=0, stratify=labels)
    x_train, x_test, y_train, y_test = (torch.as_tensor(part) for part in parts)
    return TensorDataset(x_train.float(), y_train), TensorDataset(x_test.float(), y_test)


def train_func(config: dict) -> None:
    import deepspeed

    torch.manual_seed(0)
    train_data, test_data = load_data()
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config["deepspeed"])
    begin = 0
    if checkpoint := train.get_checkpoint():
        with checkpoint.as_directory() as directory:
            _, saved = engine.load_checkpoint(str(directory))
        begin = saved["epoch"] + 1
    loader = train.torch.prepare_data_loader(DataLoader(train_data, batch_size=32, shuffle=True))
    loader.set_epoch(begin)
    images, labels = test_data.tensors
    for epoch in range(begin, config["epochs"]):
        for batch, targets in loader:
            loss = nn.functional.cross_entropy(engine(batch), targets)
            engine.backward(loss)
            engine.step()
        with torch.no_grad():
            accuracy = (engine(images).argmax(1) == labels).float().mean().item()
        with train.checkpoint_dir() as directory:
            engine.save_checkpoint(str(directory), client_state={"epoch": epoch})  # each rank its own part
            metrics = {"epoch": epoch, "loss": loss.item(), "test_accuracy": accuracy}
            train.report(metrics, checkpoint=Checkpoint.from_directory(directory), replicated=False)


def make_trainer(function=train_func, epochs: int = 20, **run) -> TorchTrainer:
    return TorchTrainer(
        function,
        train_loop_config={"epochs": epochs, "deepspeed": SETTINGS},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(failure_config=FailureConfig(max_failures=1), **run),
    )


if __name__ == "__main__":
    accuracy = make_trainer().fit().metrics["test_accuracy"]
    print(f"test accuracy: {accuracy:.3f}")
    sys.exit(accuracy < 0.95)
