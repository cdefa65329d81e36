"""How checkpoints get to their place: copied, moved, meanwhile; and what is said when they cannot."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from pathlib import Path

import pytest
from workers import fit, rank

from shoal import train
from shoal._core.records import CheckpointCommitted, Record
from shoal._runtime.journal import Journal
from shoal._runtime.run_driver import RunDriver
from shoal._worker import files
from shoal._worker.uploader import AT_ONCE
from shoal.errors import StorageError
from shoal.train import Checkpoint, CheckpointConfig, CheckpointUploadMode


def test_files_written_in_place_are_moved_and_not_copied():
    def train_func():
        inodes = []
        for step in range(2):
            with train.checkpoint_dir() as directory:
                file = directory / "deep" / f"part-{rank()}"
                file.parent.mkdir()
                file.write_text(str(step))
                inodes.append(file.stat().st_ino)
                train.report({"step": step}, checkpoint=Checkpoint.from_directory(directory))
        return inodes

    result = fit(train_func, 2)
    assert [(c.path / "deep/part-0").stat().st_ino for c, _ in reversed(result.best_checkpoints)] == result.return_value
    for checkpoint, metrics in result.best_checkpoints:
        assert {p.name for p in (checkpoint.path / "deep").iterdir()} == {"part-0", "part-1"}
        assert (checkpoint.path / "deep/part-1").read_text() == str(metrics["step"])
        checkpoint.verify()
    assert {p.name for p in result.checkpoint.path.parent.iterdir()} == {"checkpoint_000001", "checkpoint_000002"}


def test_a_directory_that_was_not_reported_is_removed_when_the_block_raises():
    def train_func():
        try:
            with train.checkpoint_dir() as directory:
                (directory / "x").touch()
                raise KeyError("before the report")
        except KeyError:
            train.report({"gone": not directory.exists()})

    assert fit(train_func, 1).metrics["gone"] is True


def test_training_goes_on_while_a_checkpoint_is_stored():
    def train_func():
        directory = Path(train.get_context().get_trial_dir(), "big")
        directory.mkdir()
        with open(directory / "model", "wb") as file:
            for _ in range(64):
                file.write(os.urandom(1 << 20))
        blocked = []
        for step in range(2):
            began = time.perf_counter()
            train.report(
                {"step": step, "blocked": blocked},
                checkpoint=Checkpoint(directory),
                checkpoint_upload_mode=CheckpointUploadMode.ASYNC,
                delete_local_checkpoint_after_upload=False,
            )
            blocked.append(time.perf_counter() - began)
        began = time.perf_counter()
        train.report({"step": 2, "blocked": blocked}, checkpoint=Checkpoint(directory))
        train.report({"async": max(blocked), "sync": time.perf_counter() - began})

    result = fit(train_func, 1)
    assert len(result.best_checkpoints) == 3
    assert result.metrics["async"] < result.metrics["sync"]
    for checkpoint, _ in result.best_checkpoints:
        checkpoint.verify()


def test_a_function_s_end_waits_for_what_is_still_being_stored():
    def train_func():
        directory = Path(train.get_context().get_trial_dir(), "c")
        directory.mkdir()
        (directory / "model").write_bytes(os.urandom(32 << 20))
        train.report(
            {"a": 1},
            checkpoint=Checkpoint(directory),
            checkpoint_upload_mode=CheckpointUploadMode.ASYNC,
            delete_local_checkpoint_after_upload=True,
        )
        return str(directory)

    result = fit(train_func, 2)
    assert (result.checkpoint.path / "model").stat().st_size == 32 << 20
    assert not Path(result.return_value).exists()


def test_an_error_while_storing_is_raised_by_the_next_report():
    def train_func():
        directory = Path(train.get_context().get_trial_dir(), "c")
        directory.mkdir()
        (directory / "model").write_text("x")
        # What the files are to be copied into is not a directory.
        root = train.get_context().get_storage() / "checkpoints"
        root.touch()
        train.report({"a": 1}, Checkpoint(directory), checkpoint_upload_mode=CheckpointUploadMode.ASYNC)
        time.sleep(1.0)
        train.report({"a": 2})
        raise AssertionError("not reached")

    with pytest.raises(train.TrainingFailedError) as caught:
        fit(train_func, 1)
    assert isinstance(caught.value.__cause__, StorageError)
    assert "the checkpoint of report 1 could not be stored: " in str(caught.value)


def test_a_name_of_its_own_for_a_checkpoint():
    def train_func():
        directory = train.get_context().get_trial_dir()
        Path(directory, "x").touch()
        train.report({"a": 1}, Checkpoint(directory), checkpoint_dir_name="epoch-1")
        with pytest.raises(ValueError, match="must be the name of one directory"):
            train.report({"a": 1}, Checkpoint(directory), checkpoint_dir_name="a/b")

    result = fit(train_func, 1)
    assert result.checkpoint.path.name == "epoch-1"


def test_a_name_that_is_used_again_is_the_newer_checkpoint_s():
    def train_func():
        for step in range(3):
            with train.checkpoint_dir() as directory:
                (directory / "x").write_text(str(step))
                train.report({"step": step}, Checkpoint(directory), checkpoint_dir_name="latest")

    result = fit(train_func, 1, checkpoint_config=train.CheckpointConfig(num_to_keep=1))
    assert [(c.path.name, m["step"]) for c, m in result.best_checkpoints] == [("latest", 2)]
    assert (result.checkpoint.path / "x").read_text() == "2"


def test_damage_is_found_by_reading(tmp_path: Path):
    def train_func():
        directory = Path(train.get_context().get_trial_dir())
        (directory / "x").write_text("whole")
        train.report({"a": 1}, Checkpoint(directory))

    checkpoint = fit(train_func, 1).checkpoint
    checkpoint.verify()
    (checkpoint.path / "x").write_text("Whole")
    with pytest.raises(StorageError, match="x has changed: its digest is not crc32:"):
        checkpoint.verify()
    with pytest.raises(StorageError, match="its manifest is missing"):
        Checkpoint(tmp_path).verify()


def test_large_and_small_files_are_copied_and_have_the_same_kind_of_digest(tmp_path: Path):
    (tmp_path / "from/deep").mkdir(parents=True)
    sizes = {"deep/small": 1000, "large": 2 * files.CHUNK + 12345, "empty": 0}
    for name, size in sizes.items():
        (tmp_path / "from" / name).write_bytes(os.urandom(size))
    entries = files.copy(tmp_path / "from", tmp_path / "to", sizes)
    for entry in entries:
        assert (tmp_path / "to" / entry.path).read_bytes() == (tmp_path / "from" / entry.path).read_bytes()
        assert entry.size == sizes[entry.path]
    directory = os.open(tmp_path / "to", os.O_RDONLY)
    for entry in files.with_digests(directory, entries):
        assert entry.digest == files.digest(tmp_path / "from" / entry.path)
    os.close(directory)
    assert [e.path for e in files.listing(tmp_path / "to")] == ["empty", "large", "deep/small"]


def test_the_digests_of_large_files_come_after_the_commit_and_are_in_the_manifest_at_the_end(tmp_path: Path):
    def work() -> None:
        directory = Path(train.get_context().get_trial_dir(), "big")
        directory.mkdir()
        (directory / "model").write_bytes(os.urandom(AT_ONCE + 1))
        train.report({}, Checkpoint(directory))
        with train.checkpoint_dir() as own:
            (own / "model").write_bytes(os.urandom(AT_ONCE + 1))
            train.report({}, Checkpoint(own))

    result = fit(work, 1)
    for checkpoint, _ in result.best_checkpoints:
        manifest = json.loads((checkpoint.path / files.MANIFEST).read_text())
        assert [entry["digest"][:6] for entry in manifest["files"]] == ["crc32:"]
        with open(checkpoint.path / "model", "r+b") as file:
            file.seek(AT_ONCE)
            file.write(b"!?")
            file.truncate(AT_ONCE + 1)
        with pytest.raises(StorageError, match="model has changed"):
            checkpoint.verify()


def test_metadata_of_a_checkpoint(tmp_path: Path):
    checkpoint = Checkpoint(tmp_path)
    assert checkpoint.get_metadata() == {}
    checkpoint.set_metadata({"a": 1})
    checkpoint.update_metadata({"b": float("inf")})
    assert checkpoint.get_metadata() == {"a": 1, "b": float("inf")}
    copied = Checkpoint(checkpoint.to_directory(tmp_path / "copy"))
    assert copied.get_metadata()["a"] == 1
    assert Path(Checkpoint(tmp_path).to_directory()).is_dir()
    with pytest.raises(StorageError, match="there is no checkpoint at"):
        Checkpoint(tmp_path / "none").to_directory()


def test_two_gigabytes_are_stored_and_read_back():
    def train_func():
        with train.checkpoint_dir() as directory:
            chunk = os.urandom(1 << 20)
            with open(directory / "model", "wb") as file:
                for _ in range(2048):
                    file.write(chunk)
            train.report({"a": 1}, Checkpoint(directory))

    result = fit(train_func, 1)
    assert (result.checkpoint.path / "model").stat().st_size == 2 << 30
    result.checkpoint.verify()
    shutil.rmtree(result.path)


def test_a_checkpoint_that_somebody_reads_is_removed_later(tmp_path: Path):
    def work() -> list[bool]:
        seen = []
        train.report({"step": 1}, saved("1"))
        first = train.get_all_reported_checkpoints()[0].checkpoint
        with first.as_directory() as directory:
            for step in (2, 3):
                train.report({"step": step}, saved(str(step)))
                train.get_all_reported_checkpoints()
            seen.append(Path(directory, "model.txt").read_text() == "1")
        train.report({"step": 4}, saved("4"))
        train.get_all_reported_checkpoints()
        seen.append(first.path.exists())
        return seen

    def saved(text: str) -> Checkpoint:
        directory = tempfile.mkdtemp()
        Path(directory, "model.txt").write_text(text)
        return Checkpoint.from_directory(directory)

    result = fit(work, 1, checkpoint_config=CheckpointConfig(num_to_keep=1))
    assert result.return_value == [True, False]
    assert [path.name for path in Path(result.path, "checkpoints").iterdir()] == ["checkpoint_000004"]


def test_the_report_of_a_checkpoint_is_on_disk_before_the_journal_has_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A driver may be killed after any write: whoever goes on from the checkpoint finds the report it belongs to."""
    reported = {}

    def append(journal: Journal, record: Record) -> None:
        if isinstance(record, CheckpointCommitted):
            metrics = tmp_path / "runs/rows/metrics.jsonl"
            reported[record.n] = len(metrics.read_text().splitlines()) if metrics.exists() else 0
        write(journal, record)

    write = Journal.append
    monkeypatch.setattr(Journal, "append", append)
    monkeypatch.setattr(RunDriver, "settle", lambda self: None)  # as if all messages came in one turn of the loop
    fit(three_checkpoints, 2, name="rows")
    assert sorted(reported) == [1, 2, 3]
    assert all(rows >= n for n, rows in reported.items())


def three_checkpoints() -> None:
    for _ in range(3):
        train.report({}, checkpoint=Checkpoint(train.get_context().get_trial_dir()))
