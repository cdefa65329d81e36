"""How long a checkpoint of a gigabyte holds training up, in each way of storing it, and how fast a long run resumes."""

from __future__ import annotations

import os
import shutil
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.harness import Measurement
from shoal import train
from shoal.errors import TrainingFailedError
from shoal.train import Checkpoint, CheckpointConfig, CheckpointUploadMode, DataParallelTrainer, RunConfig

SIZE = 1 << 30
FILES = 4
REPORTS, EVERY = 10_000, 10


def write(directory: Path) -> None:
    """Write a checkpoint of a gigabyte."""
    block = os.urandom(8 << 20)
    for number in range(FILES):
        with open(directory / f"model_{number}", "wb") as file:
            for _ in range(SIZE // FILES // len(block)):
                file.write(block)


def blocked(config: dict) -> dict[str, list[float]]:
    """Return seconds that training stands still, in turns, so that what else the machine does meets all alike."""
    scratch = Path(train.get_context().get_storage(), "scratch")  # of the same disk as the checkpoints
    source = scratch / "source"
    source.mkdir(parents=True)
    write(source)
    seconds: dict[str, list[float]] = {name: [] for name in ("copy", "sync", "async", "in place")}

    def timed(name: str, began: float) -> None:
        seconds[name].append(time.perf_counter() - began)
        train.get_all_reported_checkpoints()
        os.sync()

    for _ in range(config["times"]):
        began = time.perf_counter()
        shutil.copytree(source, scratch / "copy")
        timed("copy", began)
        shutil.rmtree(scratch / "copy")
        began = time.perf_counter()
        train.report({}, Checkpoint(source))
        timed("sync", began)
        began = time.perf_counter()
        train.report(
            {},
            Checkpoint(source),
            checkpoint_upload_mode=CheckpointUploadMode.ASYNC,
            delete_local_checkpoint_after_upload=False,
        )
        timed("async", began)
        with train.checkpoint_dir() as directory:
            write(directory)
            began = time.perf_counter()
            train.report({}, Checkpoint.from_directory(directory))
            timed("in place", began)
    return seconds


def long_run(config: dict) -> float:
    """Make ten thousand reports and a thousand checkpoints, and fail; once resumed, say when that was."""
    if train.get_checkpoint() is not None:
        return time.time()
    for step in range(1, REPORTS + 1):
        if step % EVERY:
            train.report({"step": step, "loss": 1 / step})
        else:
            with train.checkpoint_dir() as directory:
                (directory / "step.txt").write_text(str(step))
                train.report({"step": step, "loss": 1 / step}, Checkpoint.from_directory(directory))
    raise RuntimeError("resume me")


def resume(name: str) -> float:
    """Return seconds from ``fit()`` to the first line of the function in a run that has a long history."""
    trainer = DataParallelTrainer(long_run, run_config=RunConfig(name=name, resume="auto", verbose=0))
    try:
        trainer.fit()
    except TrainingFailedError:
        began = time.time()
        return float(trainer.fit().return_value) - began
    raise AssertionError("the first part of the run did not fail")


def fresh(config: dict) -> float:
    return time.time()


def start() -> float:
    began = time.time()
    return float(DataParallelTrainer(fresh, run_config=RunConfig(verbose=0)).fit().return_value) - began


def measure(quick: bool) -> Iterator[Measurement]:
    result = DataParallelTrainer(
        blocked,
        train_loop_config={"times": 3 if quick else 7},
        run_config=RunConfig(verbose=0, checkpoint_config=CheckpointConfig(num_to_keep=1)),
    ).fit()
    seconds = result.return_value
    shutil.rmtree(result.path)
    copies = seconds["copy"]
    yield Measurement("1 GB checkpoint, training stands still", "s", seconds["sync"], "copytree", copies, "<= 1.05")
    yield Measurement("the same, asynchronous", "s", seconds["async"], "copytree", copies, "<= 0.05 s")
    yield Measurement("the same, checkpoint_dir(), after the write", "s", seconds["in place"], "copytree", copies, "0")
    start()
    starts = [start() for _ in range(5)]
    resumes = [resume(f"long{number}") for number in range(2 if quick else 3)]
    yield Measurement(
        "resume, 10,000 reports, 1,000 checkpoints", "s", resumes, "a new run", [statistics.median(starts)], "<= 1 s"
    )
