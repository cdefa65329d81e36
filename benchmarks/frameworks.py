"""Training steps a second of each framework under shoal, and under the framework's own launcher."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.harness import Measurement
from benchmarks.peers import framework_loops
from shoal import train
from shoal.train import RunConfig, ScalingConfig

SCRIPT = str(Path(framework_loops.__file__))
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", SCRIPT]
# `accelerate launch --cpu` starts one process on a machine without MPI: torchrun is the way that starts two.
LAUNCHERS = {
    "transformers": ("torchrun", TORCHRUN),
    "accelerate": ("torchrun", TORCHRUN),
    "deepspeed": ("torchrun", TORCHRUN),
    "lightning": ("its launcher", [sys.executable, SCRIPT]),
    "jax": ("two processes", []),
    "tensorflow": ("two processes", []),
    "xgboost": ("two processes", []),
    "lightgbm": ("two processes", []),
}


def train_func(config: dict[str, Any]) -> float:
    name = config["name"]
    settings: dict[str, Any] = {}
    if name == "lightgbm":
        from shoal.train.lightgbm import get_network_params

        settings = get_network_params()
    if name == "lightning":
        from shoal.train.lightning import DDPStrategy, LightningEnvironment

        settings = {"strategy": DDPStrategy(), "plugins": [LightningEnvironment()], "devices": "auto"}
    return float(getattr(framework_loops, name)(train.report, **settings))


def trainer_of(name: str) -> type[train.DataParallelTrainer]:
    if name == "transformers":
        from shoal.train.huggingface import TransformersTrainer as Trainer
    elif name == "tensorflow":
        from shoal.train.tensorflow import TensorflowTrainer as Trainer
    elif name == "xgboost":
        from shoal.train.xgboost import XGBoostTrainer as Trainer
    elif name == "lightgbm":
        from shoal.train.lightgbm import LightGBMTrainer as Trainer
    elif name == "jax":
        from shoal.train.jax import JaxTrainer as Trainer
    else:
        from shoal.train.torch import TorchTrainer as Trainer
    return Trainer


def with_shoal(name: str) -> float:
    trainer = trainer_of(name)(
        train_func,
        train_loop_config={"name": name},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(verbose=0, log_to_driver=None),
    )
    return float(trainer.fit().return_value)


def with_launcher(name: str) -> float:
    command = LAUNCHERS[name][1]
    if not command:
        with socket.socket() as held:
            held.bind(("127.0.0.1", 0))
            port = held.getsockname()[1]
        return framework_loops._processes(name, port)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*command, name], capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise RuntimeError(done.stderr[-3000:])
    return float(done.stdout.split()[-1])


def measure(quick: bool) -> Iterator[Measurement]:
    for name, (launcher, _) in LAUNCHERS.items():
        ours, theirs = [], []
        for _ in range(2 if quick else 5):  # in turns, so that what else the machine does meets both
            ours.append(with_shoal(name))
            theirs.append(with_launcher(name))
        yield Measurement(f"{name}: steps a second, a report each", "/s", ours, launcher, theirs, ">= 0.98 of it")
