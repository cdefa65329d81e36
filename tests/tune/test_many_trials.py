"""Thousands of trials, trials that are the same, and metrics that are there now and then."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from searching import directories, search

from shoal import tune
from shoal._runtime.run_driver import RunDriver
from shoal.tune.schedulers import ASHAScheduler, MedianStoppingRule

LARGE = """
import json, psutil, sys, time
from shoal import tune

class Memory(tune.Callback):
    count = 0
    seen = []

    def on_trial_complete(self, iteration, trials, trial, **info):
        self.count += 1
        if self.count % 1000 == 0:
            self.seen.append(psutil.Process().memory_full_info().uss)

def objective(config):
    tune.report({"score": config["a"]})

memory = Memory()
grid = tune.Tuner(
    objective,
    param_space={"a": tune.uniform(0, 1)},
    tune_config=tune.TuneConfig(metric="score", mode="max", num_samples=5000, reuse_workers=True),
    run_config=tune.RunConfig(name="large", storage_path=sys.argv[1], verbose=0, callbacks=[memory]),
).fit()
began = time.perf_counter()
best, frame = grid.get_best_result(), grid.get_dataframe()
listed = time.perf_counter() - began
print(json.dumps({"seen": memory.seen, "ended": grid.num_terminated, "rows": len(frame), "listed": listed,
                  "best": bool(best.metrics["score"] == frame["score"].max())}))
"""


def test_five_thousand_trials_neither_fill_the_driver_nor_make_listing_slow(tmp_path: Path):
    done = subprocess.run(
        [sys.executable, "-c", LARGE, str(tmp_path)], capture_output=True, text=True, check=True, timeout=300
    )
    told = json.loads(done.stdout.splitlines()[-1])
    assert (told["ended"], told["rows"], told["best"]) == (5000, 5000, True)
    first, *_, last = told["seen"]
    assert (last - first) / 4000 < 5000  # bytes a trial
    assert told["listed"] < 20  # seconds; a second here
    began = time.perf_counter()
    assert tune.Tuner.can_restore(tmp_path / "large")
    grid = tune.Tuner.restore(tmp_path / "large", lambda config: None).fit()  # finished: nothing is run
    assert len(grid) == 5000
    assert time.perf_counter() - began < 60


class Drivers(tune.Callback):
    """Counts the drivers of trials that there are, at the end of each trial."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self.seen.append(sum(type(thing) is RunDriver for thing in gc.get_objects()))


@pytest.mark.parametrize("reuse_workers", [False, True])
def test_what_drove_a_trial_is_forgotten_without_the_garbage_collector(reuse_workers: bool):
    drivers = Drivers()
    gc.collect()
    gc.disable()  # which has enough to do with what users make
    try:
        search(
            lambda config: {"score": config["a"]},
            num_samples=150,
            max_concurrent_trials=1,
            reuse_workers=reuse_workers,
            run={"callbacks": [drivers]},
        )
    finally:
        gc.enable()
    assert len(drivers.seen) == 150
    assert max(drivers.seen) < 75  # some are kept by timers that will not fire, and these are tidied now and then


def test_trials_that_are_the_same_are_trials_of_their_own():
    grid = search(lambda config: {"score": config["a"]}, {"a": tune.choice([7])}, num_samples=5)
    assert [result.config for result in grid] == [{"a": 7}] * 5
    assert len(directories(grid)) == 5
    assert len({result.metrics["trial_id"] for result in grid}) == 5


def test_a_metric_that_only_some_reports_have_decides_at_those():
    def objective(config: dict[str, Any]) -> None:
        for step in range(1, 9):
            tune.report({"score": config["a"], "step": step} if step % 4 == 0 else {"step": step})

    scheduler = ASHAScheduler(time_attr="step", grace_period=2, max_t=8, reduction_factor=2)
    grid = search(objective, {"a": tune.grid_search([4, 3, 2, 1])}, scheduler=scheduler, max_concurrent_trials=1)
    # The first report with a number is the fourth, past the rung at 2: there, and at 4, the worse half ends.
    assert [result.metrics["step"] for result in grid] == [8, 4, 4, 4]
    assert grid.get_best_result().config["a"] == 4
    grid = search(objective, {"a": tune.grid_search([1, 2])}, scheduler=MedianStoppingRule(time_attr="step"))
    assert grid.num_terminated == 2


def test_an_empty_space_is_one_trial_and_several_samples_are_several():
    assert len(search(lambda config: {"score": 1}, {})) == 1
    assert len(search(lambda config: {"score": 1}, {}, num_samples=3)) == 3
