"""Scripts as people write them, for tests that start them as people do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shoal._core.overview import Overview
from shoal._runtime import catalog
from shoal.cli import main

TRAIN = """
import os, pathlib, sys, tempfile, time
from shoal import train
from shoal.train import Checkpoint, CheckpointConfig, RunConfig

def train_func(config):
    start, kept = 0, train.get_checkpoint()
    if kept:
        with kept.as_directory() as directory:
            start = int(pathlib.Path(directory, "step").read_text())
    print(f"begins at {start}", flush=True)
    for step in range(start, config["steps"]):
        time.sleep(config["pause"])
        if step == config["fails_at"]:
            raise RuntimeError("the loss is gone")
        with tempfile.TemporaryDirectory() as directory:
            pathlib.Path(directory, "step").write_text(str(step + 1))
            train.report(
                {"loss": 1 / (step + 1), "eval": {"acc": step / 100}}, checkpoint=Checkpoint.from_directory(directory)
            )

steps, pause, fails_at = (int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]))
result = train.DataParallelTrainer(
    train_func,
    train_loop_config={"steps": steps, "pause": pause, "fails_at": fails_at, "optimizer": {"lr": 0.1}},
    run_config=RunConfig(
        checkpoint_config=CheckpointConfig(
            num_to_keep=3, checkpoint_score_attribute="loss", checkpoint_score_order="min"
        )
    ),
).fit()
print("the end", result.metrics["training_iteration"])
"""

SEARCH = """
import sys, time
from shoal import tune

def objective(config):
    for step in range(int(sys.argv[1])):
        time.sleep(float(sys.argv[2]))
        tune.report({"loss": config["lr"] / (step + 1)})
    if config["lr"] > 3:
        raise ValueError("too large")

tune.Tuner(
    objective,
    param_space={"lr": tune.grid_search([1, 2, 3, 4]), "kind": "plain"},
    tune_config=tune.TuneConfig(metric="loss", mode="min"),
).fit()
"""


def shoal(*arguments: str) -> int:
    """Give a command in this process; what it prints is captured by pytest."""
    return main(arguments)


def started(*arguments: str, storage: Path | str, **environment: str) -> subprocess.Popen[str]:
    """Give a command in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "shoal.cli", *arguments],
        env={**os.environ, "SHOAL_STORAGE_PATH": str(storage), "COLUMNS": "200", **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def done(*arguments: str, storage: Path | str, code: int = 0) -> str:
    """Give a command in a process of its own, and return what it printed."""
    process = started(*arguments, storage=storage)
    output, _ = process.communicate(timeout=90)
    assert process.returncode == code, output
    return output


@contextmanager
def running(*arguments: str, storage: Path | str) -> Iterator[subprocess.Popen[str]]:
    """Have a script run for as long as the block does, or to its end."""
    process = started("run", *arguments, storage=storage)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.communicate(timeout=60)


def look(name: str, storage: Path | str) -> Overview | None:
    """Return what is to be seen of a run; ``None`` before there is one."""
    place = catalog.root_of(str(storage)) / name
    return catalog.overview(place) if catalog.kind_of(place) else None


def reports(name: str, storage: Path | str) -> int:
    """Return how many reports a run has made."""
    one = look(name, storage)
    return one.reports if one else 0
