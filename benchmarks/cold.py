"""Prints the seconds from ``fit()`` to the first line of the function, in a driver that has just imported torch."""

from __future__ import annotations

import time

import torch

from shoal import train
from shoal.train import RunConfig, ScalingConfig
from shoal.train.torch import TorchTrainer


def train_func() -> None:
    train.report({"first_line": time.time(), "threads": torch.get_num_threads()})


trainer = TorchTrainer(
    train_func, scaling_config=ScalingConfig(num_workers=2), run_config=RunConfig(verbose=0, log_to_driver=None)
)
began = time.time()
print(trainer.fit().metrics["first_line"] - began)
