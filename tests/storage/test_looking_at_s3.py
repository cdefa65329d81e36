"""Runs on an S3 server, seen and asked from outside."""

from __future__ import annotations

import json

import pytest
from scripts import TRAIN, done, look, reports, running
from workers import wait_for

from shoal._runtime import attendance, catalog


def test_a_run_on_s3_is_seen_and_stopped_from_a_machine_that_shares_the_bucket_alone(
    s3: str, tmp_path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(attendance, "ring", lambda token: None)  # on another machine nobody hears the bell
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    with running("--name", "mine", str(script), "5000", "0.1", "-1", storage=s3) as process:
        wait_for(lambda: reports("mine", s3) >= 2, 60)
        wait_for(lambda: look("mine", s3).workers, 60)  # type: ignore[union-attr]
        attendance.ask(catalog.find("mine", s3), "stop")
        assert process.wait(60) == 0
    one = look("mine", s3)
    assert one is not None and one.state == "STOPPED" and "asked by" in one.reason
    assert not catalog.names_in(catalog.find("mine", s3) / attendance.CONTROL)


def test_the_command_line_works_on_s3(s3: str, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    with running("--name", "mine", str(script), "5000", "0.2", "-1", storage=s3):
        wait_for(lambda: reports("mine", s3) >= 2, 60)
        assert "in train_func" in done("stacks", "mine", storage=s3)
        assert "STOPPED" in done("stop", "mine", storage=s3)
    assert [one["name"] for one in json.loads(done("runs", "--json", storage=s3))] == ["mine"]
    assert "begins at 0" in done("logs", "mine", storage=s3)
    assert "every byte is as it was stored" in done("checkpoints", "mine", "verify", storage=s3)
    done("checkpoints", "mine", "export", "--to", str(tmp_path / "model"), storage=s3)
    assert int((tmp_path / "model" / "step").read_text()) >= 2
    assert "STOPPED" in done("show", f"{s3}/mine", storage=tmp_path)
    done("clean", "mine", "--yes", storage=s3)
    assert "there are no runs" in done("runs", storage=s3)
