"""A trial that goes on from another one's checkpoint gets the one that was decided, whatever happens before it can."""

from __future__ import annotations

from pathlib import Path

import pytest
from synchronous_population import search


def test_it_goes_on_from_the_checkpoint_that_was_decided_although_its_owner_keeps_only_a_later_one(tmp_path: Path):
    done = search(tmp_path)
    assert done.stdout == "[12, 12, 12, 12]\n", done.stderr


@pytest.mark.parametrize("start", range(5, 14, 2))
def test_it_goes_on_from_what_was_decided_also_when_the_driver_is_killed_in_between(tmp_path: Path, start: int):
    assert search(tmp_path, start).returncode == -9
    done = search(tmp_path, -1, "restored")
    assert done.stdout == "[12, 12, 12, 12]\n", done.stderr
