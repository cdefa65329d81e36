"""What ``report()`` costs the training thread, and whether all reports are stored."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.harness import Measurement
from shoal import train
from shoal.train import DataParallelTrainer, RunConfig, ScalingConfig

MANY = 100_000


def in_a_loop(config: dict) -> float:
    """Return seconds a report while nothing else is done."""
    began = time.perf_counter()
    for step in range(MANY):
        train.report({"loss": 0.5, "epoch": step})
    return (time.perf_counter() - began) / MANY


def between_steps(config: dict) -> list[float]:
    """Return seconds of each report between steps of half a millisecond of work."""
    samples = []
    for step in range(2000):
        began = time.perf_counter()
        train.report({"loss": 0.5, "epoch": step})
        samples.append(time.perf_counter() - began)
        while time.perf_counter() - began < 0.0005:
            pass
    return sorted(samples)


def measure(quick: bool) -> Iterator[Measurement]:
    def fit(function: object, workers: int) -> object:
        trainer = DataParallelTrainer(
            function,  # type: ignore[arg-type]
            scaling_config=ScalingConfig(num_workers=workers),
            run_config=RunConfig(verbose=0),
        )
        return trainer.fit()

    paced = fit(between_steps, 1).return_value  # type: ignore[attr-defined]
    middle = [1e6 * s for s in paced[len(paced) // 4 : -len(paced) // 4]]
    yield Measurement("report(), between steps of 0.5 ms", "us", middle, budget="<= 20 us")
    results = [fit(in_a_loop, 1) for _ in range(1 if quick else 3)]
    loops = [1e6 * r.return_value for r in results]  # type: ignore[attr-defined]
    yield Measurement("report(), 100,000 in a tight loop", "us", loops, budget="<= 20 us")
    kept = [Path(r.path, "metrics.jsonl").read_bytes().count(b"\n") for r in results]  # type: ignore[attr-defined]
    yield Measurement("reports stored of 100,000", "", [float(k) for k in kept], budget="100000")
