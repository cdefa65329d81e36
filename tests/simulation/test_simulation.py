"""Thousands of simulated runs with faults at every point: no promise is ever broken, and every run ends."""

from __future__ import annotations

import multiprocessing
import os
from collections import Counter

import pytest
from world import BrokenPromise, World

SCHEDULES = int(os.environ.get("SCHEDULES", "10000"))
BLOCK = 250


def simulate(seed: int) -> str:
    """Run one schedule; return how it ended."""
    world = World.__new__(World)
    try:
        world.__init__(seed)  # type: ignore[misc]
    except Exception as error:  # the driver may be killed while it begins
        if type(error).__name__ != "DriverDied":
            raise
        world.start_driver_again()
    world.live()
    world.check_end()
    assert world.end is not None
    return f"{world.end.state}, {min(world.drivers, 3)} drivers, {min(len(world.run.history.attempts), 4)} attempts"


def block(first: int) -> tuple[Counter[str], list[str]]:
    ends: Counter[str] = Counter()
    broken: list[str] = []
    for seed in range(first, first + BLOCK):
        try:
            ends[simulate(seed)] += 1
        except (BrokenPromise, AssertionError, Exception) as error:
            broken.append(f"seed {seed}: {type(error).__name__}: {error}")
    return ends, broken


@pytest.mark.timeout(900)  # under a minute on two free cores; it must not depend on how free they are
def test_no_schedule_breaks_a_promise():
    with multiprocessing.get_context("fork").Pool() as pool:
        results = pool.map(block, range(0, SCHEDULES, BLOCK), chunksize=1)
    broken = [text for _, texts in results for text in texts]
    assert not broken, f"{len(broken)} of {SCHEDULES} schedules broke a promise; the first:\n{broken[0]}"
    ends = sum((counter for counter, _ in results), Counter())
    kinds = {end.split(",")[0] for end in ends}
    assert kinds == {"FINISHED", "FAILED", "STOPPED"}
    assert any("3 drivers" in end for end in ends)
    assert any("4 attempts" in end for end in ends)


def test_a_seed_replays_exactly():
    for seed in range(50):
        stories = []
        for _ in range(2):
            world = World.__new__(World)
            try:
                world.__init__(seed)  # type: ignore[misc]
            except Exception:
                world.start_driver_again()
            world.live()
            stories.append(list(world.story))
        assert stories[0] == stories[1]
