"""What shoal itself keeps in memory between runs, beyond the user's driver and workers."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

from benchmarks.harness import Measurement

SOURCE = """
import psutil, sys
from shoal.train import DataParallelTrainer, RunConfig, ScalingConfig
from shoal.train.torch import TorchTrainer
trainer = TorchTrainer if sys.argv[1] == "torch" else DataParallelTrainer
trainer(lambda: None, scaling_config=ScalingConfig(num_workers=2), run_config=RunConfig(verbose=0)).fit()
print(sum(p.memory_full_info().pss for p in psutil.Process().children(recursive=True)) / 1e6)
"""


def idle(framework: str) -> float:
    done = subprocess.run([sys.executable, "-c", SOURCE, framework], capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])


def measure(quick: bool) -> Iterator[Measurement]:
    times = 1 if quick else 3
    yield Measurement("idle memory, torch preloaded", "MB", [idle("torch") for _ in range(times)], budget="<= 150 MB")
    yield Measurement("idle memory, no framework", "MB", [idle("plain") for _ in range(times)], budget="<= 60 MB")
