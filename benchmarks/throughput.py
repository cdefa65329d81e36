"""Training steps a second under DDP with two workers, and the same loop under torchrun."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.harness import Measurement
from benchmarks.peers.torchrun_loop import loop
from shoal import train
from shoal.train import RunConfig, ScalingConfig
from shoal.train.torch import TorchTrainer

SCRIPT = Path(__file__).parent / "peers/torchrun_loop.py"


def train_func(config: dict) -> float:
    return loop(train.torch.prepare_model, lambda step, loss: train.report({"step": step, "loss": loss}))


def with_shoal() -> float:
    trainer = TorchTrainer(train_func, scaling_config=ScalingConfig(num_workers=2), run_config=RunConfig(verbose=0))
    return float(trainer.fit().return_value)


def with_torchrun() -> float:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", str(SCRIPT)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[-1])


def measure(quick: bool) -> Iterator[Measurement]:
    ours, theirs = [], []
    for _ in range(2 if quick else 5):  # in turns, so that what else the machine does meets both
        ours.append(with_shoal())
        theirs.append(with_torchrun())
    yield Measurement("DDP steps a second, a report each", "/s", ours, "torchrun", theirs, ">= 0.99 of it")
