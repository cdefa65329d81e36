"""Thousands of simulated searches with faults at every point: no promise is ever broken, and every search ends."""

from __future__ import annotations

import multiprocessing
import os
from collections import Counter

import pytest
from search_world import SearchWorld

SEARCHES = int(os.environ.get("SCHEDULES", "10000")) // 4
BLOCK = 100


def simulate(seed: int) -> int:
    world = SearchWorld(seed)
    world.live()
    world.check_end()
    return min(world.drivers, 3)


def block(first: int) -> tuple[Counter[int], list[str]]:
    drivers: Counter[int] = Counter()
    broken: list[str] = []
    for seed in range(first, first + BLOCK):
        try:
            drivers[simulate(seed)] += 1
        except Exception as error:
            broken.append(f"seed {seed}: {type(error).__name__}: {error}")
    return drivers, broken


@pytest.mark.timeout(900)  # well under a minute on two free cores; it must not depend on how free they are
def test_no_search_breaks_a_promise():
    with multiprocessing.get_context("fork").Pool() as pool:
        results = pool.map(block, range(0, SEARCHES, BLOCK), chunksize=1)
    broken = [text for _, texts in results for text in texts]
    assert not broken, f"{len(broken)} of {SEARCHES} searches broke a promise; the first:\n{broken[0]}"
    assert sum((drivers for drivers, _ in results), Counter())[3] > SEARCHES / 100
