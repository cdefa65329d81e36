"""The time that training waits for its data: measured, shown, and hinted at."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from shoal import train
from shoal._core import data_wait
from shoal._worker.data_wait import DataWait
from shoal.abc import Callback
from shoal.train import DataParallelTrainer, RunConfig, ScalingConfig


def slow_rows(seconds: float):
    def rows():
        for number in range(8):
            time.sleep(seconds)
            yield {"x": number}

    return rows


def test_a_report_says_how_much_of_its_time_was_waiting():
    def train_func():
        for name in ("slow", "fast"):
            for _ in train.get_dataset_shard(name).iter_batches(batch_size=2, prefetch_batches=0):
                time.sleep(0.02)
            train.report({"data": name})
        train.report({"data": "none"})

    seen: dict[str, float | None] = {}

    class Watch(Callback):
        def on_report(self, metrics):
            seen[metrics["data"]] = metrics.get("data_wait_share")

    DataParallelTrainer(
        train_func,
        datasets={"slow": slow_rows(0.1), "fast": {"x": np.arange(8)}},
        run_config=RunConfig(verbose=0, callbacks=[Watch()]),
    ).fit()
    assert seen["slow"] is not None and seen["slow"] > 0.5
    assert seen["fast"] is not None and seen["fast"] < 0.3
    assert seen["none"] is None


def test_much_waiting_is_hinted_at_once_with_the_rank(monkeypatch: pytest.MonkeyPatch, capsys, tmp_path: Path):
    monkeypatch.setattr(data_wait, "ENOUGH_SECONDS", 0.2)

    def train_func():
        for _ in range(3):
            for _ in train.get_dataset_shard().iter_batches(batch_size=2):
                pass
            train.report({"loss": 1.0})

    DataParallelTrainer(
        train_func, datasets={"train": slow_rows(0.05)}, scaling_config=ScalingConfig(num_workers=2)
    ).fit()
    told = capsys.readouterr().err
    assert told.count("has waited for its data") == 1
    assert "have batches made ahead (prefetch_batches=4" in told
    assert "of the time waiting for data)" in told


def test_both_sides_are_measured_and_told_once():
    wait = DataWait()
    for _ in wait.timed(iter([1, 2, 3])):
        time.sleep(0.01)
    waited, used = wait.since_last() or (0, 0)
    assert waited < 0.01
    assert used >= 0.03
    assert wait.since_last() is None
    assert wait.share() == pytest.approx(waited / (waited + used))
