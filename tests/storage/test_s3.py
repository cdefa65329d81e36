"""Runs that are kept on a real S3 server, with real worker processes."""

from __future__ import annotations

import itertools
import json
import os
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

import fsspec
import pytest
from upath import UPath
from workers import fit, rank, start_script, wait_for

import shoal
from shoal import train
from shoal.errors import RunExists, StorageError, TrainingFailedError
from shoal.train import Checkpoint, CheckpointConfig, DataParallelTrainer, Result, RunConfig, ScalingConfig
from storage.servers import Proxy, S3Server, free_port


def steps(config: dict[str, Any]) -> str:
    """Count to ``config["steps"]``, with a checkpoint of two files a step, from where the last one stands."""
    start = 0
    checkpoint = train.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as directory:
            start = int(Path(directory, "step.txt").read_text())
    for step in range(start + 1, config["steps"] + 1):
        with tempfile.TemporaryDirectory() as directory:
            Path(directory, "step.txt").write_text(str(step))
            Path(directory, f"rank{rank()}.bin").write_bytes(bytes(config.get("size", 10)))
            train.report({"step": step, "start": start}, checkpoint=Checkpoint.from_directory(directory))
        if step == config.get("die_at") and train.get_context().get_attempt() == 1 and rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
    return f"{start}"


def objects(url: str) -> list[str]:
    filesystem, path = fsspec.core.url_to_fs(url)
    filesystem.invalidate_cache()
    return sorted(name.removeprefix(f"{path}/") for name in filesystem.find(path))


def test_a_run_is_kept_on_s3_whole(s3: str) -> None:
    result = fit(steps, 2, {"steps": 3}, storage_path=s3, name="mine", log_to_driver=None)
    assert result.path == f"{s3}/mine"
    assert result.metrics["step"] == 3
    assert result.checkpoint is not None
    assert isinstance(result.checkpoint.path, UPath)
    assert str(result.checkpoint.path) == f"{s3}/mine/checkpoints/checkpoint_000003"
    assert (result.checkpoint.path / "step.txt").read_text() == "3"
    result.checkpoint.verify()
    assert objects(result.path) == [
        *(
            f"checkpoints/checkpoint_00000{n}/{file}"
            for n in (1, 2, 3)
            for file in (".manifest.json", "rank0.bin", "rank1.bin", "step.txt")
        ),
        "journal.jsonl",
        "lease/000001.json",
        "logs/worker_0.log",
        "logs/worker_1.log",
        "metrics.jsonl",
        "params.json",
        "progress.csv",
        "result.json",
        "run.json",
    ]
    again = Result.from_path(result.path)
    assert again.metrics == result.metrics
    assert again.checkpoint == result.checkpoint
    assert list(again.metrics_dataframe["step"]) == [1, 2, 3]
    best = again.get_best_checkpoint("step", "min")
    assert best is not None
    with best.as_directory() as directory:
        assert sorted(os.listdir(directory)) == [".manifest.json", "rank0.bin", "rank1.bin", "step.txt"]
    assert not Path(directory).exists()
    copy = best.to_directory()
    assert sorted(os.listdir(copy)) == ["rank0.bin", "rank1.bin", "step.txt"]
    best.set_metadata({"a": 1})
    best.update_metadata({"b": 2})
    assert again.get_best_checkpoint("step", "min").get_metadata() == {"a": 1, "b": 2}  # type: ignore[union-attr]


def test_a_killed_worker_goes_on_from_the_checkpoint_on_s3(s3: str) -> None:
    result = fit(
        steps,
        2,
        {"steps": 4, "die_at": 2},
        storage_path=s3,
        name="mine",
        max_failures=1,
        checkpoint_config=CheckpointConfig(num_to_keep=2),
    )
    assert result.metrics["step"] == 4
    assert result.metrics["start"] in (1, 2)
    assert len(result.attempts) == 2
    # What a second attempt stores lies in directories of its own, and what was not committed is gone.
    kept = {name.split("/")[1] for name in objects(result.path) if name.startswith("checkpoints/")}
    assert kept == {"checkpoint_000003.attempt-2", "checkpoint_000004.attempt-2"}


def test_a_run_on_s3_is_not_overwritten_and_can_be_resumed(s3: str) -> None:
    fit(steps, 1, {"steps": 2}, storage_path=s3, name="mine")
    with pytest.raises(RunExists, match="there is a run named 'mine' at s3://"):
        fit(steps, 1, {"steps": 2}, storage_path=s3, name="mine")
    with pytest.raises(StorageError, match=r"no run named 'other' at s3://.* to resume"):
        fit(steps, 1, {"steps": 2}, storage_path=s3, name="other", resume=True)
    # A run that has finished is not run again.
    assert fit(steps, 1, {"steps": 2}, storage_path=s3, name="mine", resume="auto").metrics["step"] == 2
    assert DataParallelTrainer.can_restore(f"{s3}/mine")
    assert not DataParallelTrainer.can_restore(f"{s3}/other")


def test_what_was_committed_before_the_driver_was_killed_is_there_for_the_next(s3: str, tmp_path: Path) -> None:
    driver = start_script(
        tmp_path,
        """
        import sys, time
        sys.path[:0] = sys.argv[2:]
        from storage.test_s3 import steps
        from workers import fit

        def slow(config):
            from shoal import train
            steps({"steps": 3})
            print("three", flush=True)
            time.sleep(60)

        fit(slow, 2, {}, storage_path=sys.argv[1], name="mine", log_to_driver="all")
        """,
        s3,
        *[str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "local")],
    )
    try:
        # The third report has returned on both ranks: the third checkpoint may not be lost by any death.
        assert driver.stdout is not None
        both = itertools.islice((line for line in driver.stdout if "three" in line), 2)
        assert len(list(both)) == 2
    finally:
        driver.kill()
        driver.wait()
    result = DataParallelTrainer.restore(
        f"{s3}/mine", steps, {"steps": 5}, run_config=RunConfig(verbose=0, log_to_driver=None)
    ).fit()
    assert result.metrics["start"] == 3
    assert list(result.metrics_dataframe["step"]) == [1, 2, 3, 4, 5]
    assert [attempt.checkpoint for attempt in result.attempts] == [0, 3]
    assert not [name for name in objects(result.path) if name.startswith(("journal/", "metrics/"))]


def test_two_drivers_cannot_drive_one_run(s3: str, tmp_path: Path) -> None:
    driver = start_script(
        tmp_path,
        """
        import sys, time
        sys.path[:0] = sys.argv[2:]
        from workers import fit
        fit(lambda: (print("here", flush=True), time.sleep(60)), 1, storage_path=sys.argv[1], name="mine",
            log_to_driver="all")
        """,
        s3,
        str(Path(__file__).parents[1] / "local"),
    )
    try:
        assert driver.stdout is not None
        assert any("here" in line for line in iter(driver.stdout.readline, ""))
        with pytest.raises(RunExists, match=f"being driven by process {driver.pid}"):
            fit(steps, 1, {"steps": 1}, storage_path=s3, name="mine", resume="auto")
    finally:
        driver.kill()
        driver.wait()
    assert fit(steps, 1, {"steps": 1}, storage_path=s3, name="mine", resume="auto").metrics["step"] == 1


def test_a_damaged_checkpoint_on_s3_is_passed_over(s3: str, capfd: pytest.CaptureFixture[str]) -> None:
    def twice(config: dict[str, Any]) -> None:
        steps({"steps": 2 if train.get_checkpoint() is None else 4})
        if train.get_context().get_attempt() == 1:
            raise RuntimeError("stop here")

    with pytest.raises(TrainingFailedError):
        fit(twice, 1, {}, storage_path=s3, name="mine")
    filesystem = fsspec.filesystem("s3")
    newest = f"{s3.removeprefix('s3://')}/mine/checkpoints/checkpoint_000002"
    filesystem.pipe_file(f"{newest}/rank0.bin", b"9" * 10)
    result = fit(twice, 1, {}, storage_path=s3, name="mine", resume=True, verbose=1)
    assert result.metrics["start"] == 1
    said = capfd.readouterr().err
    assert "checkpoint checkpoint_000002 is not sound: rank0.bin has changed" in said
    assert "checkpoint_000001 is used instead" in said
    filesystem.pipe_file(f"{newest}.attempt-2/rank0.bin", b"1")
    checkpoint = Checkpoint(f"s3://{newest}.attempt-2")
    with pytest.raises(StorageError, match=r"rank0\.bin has 1 bytes instead of 10"):
        checkpoint.verify()
    with pytest.raises(StorageError, match=r"is not sound: rank0\.bin has 1 bytes"), checkpoint.as_directory():
        pass


def test_checkpoint_dir_asynchronous_reports_and_names_used_twice(s3: str) -> None:
    def work() -> None:
        for step in range(1, 4):
            with train.checkpoint_dir() as directory:
                (directory / "step.txt").write_text(str(step))
                train.report(
                    {"step": step},
                    checkpoint=Checkpoint.from_directory(directory),
                    checkpoint_dir_name="last",
                    checkpoint_upload_mode=train.CheckpointUploadMode.ASYNC,
                )
        train.report({"step": 4})
        assert str(train.get_context().get_storage()).startswith("s3://")

    result = fit(work, 1, storage_path=s3, name="mine")
    assert [int((c.path / "step.txt").read_text()) for c, _ in result.best_checkpoints] == [3, 2, 1]
    names = [c.path.name for c, _ in result.best_checkpoints]
    assert names == ["last.attempt-1-000003", "last.attempt-1-000002", "last"]


def test_a_run_begins_from_a_checkpoint_on_s3(s3: str) -> None:
    first = fit(steps, 1, {"steps": 2}, storage_path=s3, name="first")
    second = DataParallelTrainer(
        steps,
        train_loop_config={"steps": 3},
        run_config=RunConfig(verbose=0, log_to_driver=None),
        resume_from_checkpoint=first.checkpoint,
    ).fit()
    assert second.metrics["start"] == 2


def test_a_file_system_object_says_where_the_storage_is(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    endpoint = os.environ["AWS_ENDPOINT_URL"]
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    filesystem = fsspec.filesystem("s3", endpoint_url=endpoint)
    path = s3.removeprefix("s3://")
    result = fit(steps, 2, {"steps": 2}, storage_path=path, storage_filesystem=filesystem, name="mine")
    assert result.checkpoint is not None
    assert (result.checkpoint.path / "step.txt").read_text() == "2"
    assert result.checkpoint.filesystem is filesystem
    assert result.filesystem is filesystem
    assert Result.from_path(f"{path}/mine", filesystem).metrics["step"] == 2
    assert DataParallelTrainer.can_restore(f"{path}/mine", storage_filesystem=filesystem)
    through_upath = UPath(f"s3://{path}", endpoint_url=endpoint)
    again = fit(steps, 1, {"steps": 1}, storage_path=through_upath, name="other")
    assert Result.from_path(through_upath / "other").metrics == again.metrics
    written = json.dumps([again.config, (through_upath / "other" / "run.json").read_text()])
    assert "endpoint" not in written
    assert "secret" not in written


# ---- servers that fail ----------------------------------------------------------------------------------------------


def test_a_server_that_fails_one_request_in_ten_loses_nothing(s3_behind_proxy: str, proxy: Proxy) -> None:
    proxy.break_every = 10
    result = fit(steps, 2, {"steps": 12, "die_at": 5}, storage_path=s3_behind_proxy, name="mine", max_failures=1)
    proxy.break_every = 0
    assert result.metrics["step"] == 12
    assert proxy.broken > 10
    assert list(result.metrics_dataframe["step"]) == list(range(1, 13))
    for checkpoint, metrics in result.best_checkpoints:
        checkpoint.verify()
        assert (checkpoint.path / "step.txt").read_text() == str(metrics["step"])


def test_a_server_that_stops_in_the_middle_of_an_upload_fails_the_report_and_not_what_was_committed(
    s3_behind_proxy: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOAL_STORAGE_PATIENCE_S", "2")

    def work(config: dict[str, Any]) -> None:
        steps({"steps": 1})
        Path(config["flag"]).touch()
        while not Path(config["stalling"]).exists():
            time.sleep(0.01)
        steps({"steps": 2, "size": 5_000_000})

    options = {"connect_timeout": 1, "read_timeout": 1, "retries": {"max_attempts": 0}}
    filesystem = fsspec.filesystem("s3", config_kwargs=options)
    with tempfile.TemporaryDirectory() as folder:
        flag, stalling = Path(folder, "flag"), Path(folder, "stalling")

        def stall() -> None:
            wait_for(flag.exists)
            proxy.stall_uploads_over = 1_000_000
            stalling.touch()

        import threading

        thread = threading.Thread(target=stall)
        thread.start()
        with pytest.raises(TrainingFailedError, match="the checkpoint of report 2 could not be stored") as caught:
            fit(
                work,
                1,
                {"flag": str(flag), "stalling": str(stalling)},
                storage_path=s3_behind_proxy,
                storage_filesystem=filesystem,
                name="mine",
            )
        thread.join()
    assert proxy.stalled.is_set()
    assert "Earlier checkpoints are untouched" in str(caught.value)
    proxy.stall_uploads_over = 0
    result = Result.from_path(f"{s3_behind_proxy}/mine")
    assert result.checkpoint is not None
    result.checkpoint.verify()
    assert [metrics["step"] for _, metrics in result.best_checkpoints] == [1]


def test_storage_that_never_answers_or_refuses_is_said_before_anything_starts(
    s3: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(StorageError, match=r"cannot be kept in s3://no-such-bucket/.*bucket does not exist"):
        fit(steps, 1, {"steps": 1}, storage_path="s3://no-such-bucket/runs")
    monkeypatch.setenv("SHOAL_STORAGE_PATIENCE_S", "0.5")
    # Long enough that a busy machine gets to see the refusal: with a second, it was a time-out now and then.
    patient = {"retries": {"max_attempts": 0}, "connect_timeout": 60}
    filesystem = fsspec.filesystem("s3", endpoint_url=f"http://127.0.0.1:{free_port()}", config_kwargs=patient)
    with pytest.raises(StorageError, match=r"cannot be kept in .*EndpointConnectionError"):
        fit(steps, 1, {"steps": 1}, storage_path="bucket/runs", storage_filesystem=filesystem)


def test_ctrl_c_twice_ends_a_run_whose_storage_has_stopped(s3: str, server: S3Server, tmp_path: Path) -> None:
    driver = start_script(
        tmp_path,
        """
        import sys
        sys.path[:0] = sys.argv[2:]
        from storage.test_s3 import steps
        from workers import fit
        fit(steps, 2, {"steps": 100000}, storage_path=sys.argv[1], name="mine", verbose=1)
        """,
        s3,
        *[str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "local")],
    )
    try:
        assert driver.stdout is not None
        assert any("shoal: report" in line and "report 1 " not in line for line in driver.stdout)
        server.process.send_signal(signal.SIGSTOP)
        driver.send_signal(signal.SIGINT)
        time.sleep(0.5)
        driver.send_signal(signal.SIGINT)
        driver.communicate(timeout=30)
    finally:
        server.process.send_signal(signal.SIGCONT)
        driver.kill()
        driver.wait()
    kept = Result.from_path(f"{s3}/mine").best_checkpoints
    last = max(metrics["step"] for _, metrics in kept)
    resumed = fit(steps, 1, {"steps": last + 1}, storage_path=s3, name="mine", resume=True)
    assert resumed.metrics["start"] == last


# ---- storage of this process only -----------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
def test_memory_is_storage_too_and_goes_through_the_driver(workers: int) -> None:
    url = f"memory://runs{workers}"
    result = fit(steps, workers, {"steps": 3}, storage_path=url, name="mine")
    assert result.checkpoint is not None
    assert (result.checkpoint.path / "step.txt").read_text() == "3"
    result.checkpoint.verify()
    again = Result.from_path(f"{url}/mine")
    assert again.metrics["step"] == 3
    resumed = DataParallelTrainer.restore(
        f"{url}/mine",
        steps,
        {"steps": 5},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(verbose=0, log_to_driver=None),
    )
    # It has finished, so its result is returned.
    assert resumed.fit().metrics["step"] == 3


def test_a_failed_run_in_memory_goes_on_from_what_was_committed() -> None:
    def fails_once() -> None:
        first = train.get_checkpoint() is None
        steps({"steps": 2 if first else 4})
        if first:
            # A checkpoint is there once every rank has made its part: one that fails ahead of the other leaves none.
            assert len(train.get_all_reported_checkpoints()) == 2
            raise RuntimeError("once")

    with pytest.raises(TrainingFailedError, match="once"):
        fit(fails_once, 2, storage_path="memory://failed", name="mine")
    result = fit(fails_once, 2, storage_path="memory://failed", name="mine", resume=True)
    assert (result.metrics["step"], result.metrics["start"]) == (4, 2)
    assert shoal is not None
