"""Trials that go on from each other's checkpoints on an S3 server."""

from __future__ import annotations

from pathlib import Path

from synchronous_population import search


def test_a_trial_goes_on_from_what_was_decided_also_when_the_driver_is_killed_in_between(s3: str, tmp_path: Path):
    assert search(tmp_path, 7, storage=s3).returncode == -9
    done = search(tmp_path, -1, "restored", storage=s3)
    assert done.stdout == "[12, 12, 12, 12]\n", done.stderr
