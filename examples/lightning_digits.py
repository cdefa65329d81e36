"""Train a LightningModule on handwritten digits with two workers."""

from __future__ import annotations

import sys

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from shoal import train
from shoal.train import FailureConfig, RunConfig, ScalingConfig
from shoal.train.torch import TorchTrainer


def load_data() -> tuple[TensorDataset, TensorDataset]:
    images, labels = load_digits(return_X_y=True)
    parts = train_test_split(images / 16.0, labels, test_size=0.25, random_state=0, stratify=labels)
    x_train, x_test, y_train, y_test = (torch.as_tensor(part) for part in parts)
    return TensorDataset(x_train.float(), y_train), TensorDataset(x_test.float(), y_test)


def train_func(config: dict) -> None:
    from lightning.pytorch import LightningModule, Trainer, seed_everything

    from shoal.train.lightning import DDPStrategy, LightningEnvironment, ReportCallback, prepare_trainer

    class Digits(LightningModule):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))

        def training_step(self, batch, number):
            images, labels = batch
            loss = nn.functional.cross_entropy(self.layers(images), labels)
            self.log("loss", loss, on_epoch=True, on_step=False, sync_dist=True)
            return loss

        def validation_step(self, batch, number):
            images, labels = batch
            hits = (self.layers(images).argmax(1) == labels).float().mean()
            self.log("test_accuracy", hits, on_epoch=True, sync_dist=True)

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=3e-3)

    seed_everything(0, verbose=False)
    train_data, test_data = load_data()
    trainer = prepare_trainer(
        Trainer(
            max_epochs=config["epochs"],
            accelerator="cpu",
            strategy=DDPStrategy(),
            plugins=[LightningEnvironment()],
            callbacks=[ReportCallback()],
            enable_progress_bar=False,
            enable_model_summary=False,
            logger=False,
            enable_checkpointing=False,
        )
    )
    checkpoint = train.get_checkpoint()
    trainer.fit(
        Digits(),
        DataLoader(train_data, batch_size=32, shuffle=True),
        DataLoader(test_data, batch_size=64),
        ckpt_path=str(checkpoint.path / "checkpoint.ckpt") if checkpoint else None,
    )


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
