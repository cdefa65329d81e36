"""A run is gone on with by another driver: after a death, a failure, an interrupt, or damage."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import socket
import threading
import time
from pathlib import Path

import cloudpickle
import pytest
from workers import fit, run_script, start_script, wait_for

from shoal import train
from shoal._runtime.lease import LocalLease
from shoal.errors import ControllerError, RunExists, StorageError
from shoal.train import Checkpoint, DataParallelTrainer, FailureConfig, Result, RunConfig, ScalingConfig

SCRIPT = """
import os, sys, time
from pathlib import Path
from shoal import train
from shoal.train import DataParallelTrainer, ScalingConfig, RunConfig, Checkpoint
def train_func(config):
    checkpoint = train.get_checkpoint()
    start = int((checkpoint.path / "step").read_text()) + 1 if checkpoint else 0
    directory = Path(train.get_context().get_trial_dir())
    for step in range(start, 30):
        time.sleep(config["pause"])
        (directory / "step").write_text(str(step))
        train.report({"step": step, "start": start}, checkpoint=Checkpoint(directory) if step % 5 == 4 else None)
        train.collective.barrier()
result = DataParallelTrainer(train_func, train_loop_config={"pause": float(sys.argv[1])},
    scaling_config=ScalingConfig(num_workers=2), run_config=RunConfig(name="resumed", resume="auto")).fit()
print("steps", list(result.metrics_dataframe["step"]) == list(range(30)), "start", result.metrics["start"])
"""


def counting(config):
    """Count, with a checkpoint in each step, and fail where the configuration says so."""
    checkpoint = train.get_checkpoint()
    start = int((checkpoint.path / "step").read_text()) + 1 if checkpoint else 0
    directory = Path(train.get_context().get_trial_dir())
    for step in range(start, config["steps"]):
        if step == config.get("fail"):
            raise RuntimeError("as asked")
        (directory / "step").write_text(str(step))
        train.report({"step": step, "start": start}, checkpoint=Checkpoint(directory))


def resumable(steps: int, fail: int | None = None, **fields) -> DataParallelTrainer:
    return DataParallelTrainer(
        counting,
        train_loop_config={"steps": steps, "fail": fail},
        run_config=RunConfig(**{"name": "again", "resume": "auto", "verbose": 1, **fields}),
    )


def test_a_run_whose_driver_was_killed_goes_on_where_it_was(tmp_path: Path):
    driver = start_script(tmp_path, SCRIPT, "0.05")
    wait_for(lambda: list(tmp_path.glob("runs/resumed/checkpoints/checkpoint_*")))
    driver.kill()
    driver.communicate()
    output = run_script(tmp_path, SCRIPT, "0")
    assert "steps True" in output
    assert "start 0" not in output
    assert "changed since this run was last started: train_loop_config.pause was 0.05, is 0.0" in output
    attempts = Result.from_path(tmp_path / "runs/resumed")
    assert attempts.metrics["attempt"] == 2
    assert "steps True" in run_script(tmp_path, SCRIPT, "0")  # finished: the result comes back


def test_a_finished_run_is_not_run_again():
    first = resumable(3).fit()
    second = resumable(3).fit()
    assert repr(second.metrics) == repr(first.metrics)
    assert second.path == first.path


def test_a_failed_run_goes_on_from_its_checkpoint_in_another_start():
    with pytest.raises(train.TrainingFailedError):
        resumable(5, fail=3).fit()
    result = resumable(5).fit()
    assert (result.metrics["step"], result.metrics["start"]) == (4, 3)
    assert list(result.metrics_dataframe["step"]) == [0, 1, 2, 3, 4]


def test_without_resume_nothing_is_overwritten_and_the_choice_is_named():
    resumable(1).fit()
    with pytest.raises(RunExists, match=r"RunConfig\(resume='auto'\)"):
        resumable(1, resume=False).fit()
    with pytest.raises(StorageError, match=r"there is no run named 'other' at .* to resume"):
        resumable(1, name="other", resume=True).fit()
    with pytest.raises(ValueError, match="resume='yes'"):
        RunConfig(name="x", resume="yes")
    with pytest.raises(ValueError, match="resume needs a name"):
        RunConfig(resume="auto")


@pytest.mark.parametrize("damage", ["truncated", "flipped", "missing", "no manifest", "gone"])
def test_a_damaged_newest_checkpoint_is_replaced_by_the_one_before_it(damage: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(train.TrainingFailedError):
        resumable(5, fail=3).fit()
    newest = Path(os.environ["SHOAL_STORAGE_PATH"], "again/checkpoints/checkpoint_000003")
    file = newest / "step"
    if damage == "truncated":
        file.write_text("")
    elif damage == "flipped":
        file.write_text("7")
    elif damage == "missing":
        file.unlink()
    elif damage == "no manifest":
        (newest / ".manifest.json").unlink()
    else:
        shutil.rmtree(newest)
    result = resumable(5).fit()
    assert (result.metrics["step"], result.metrics["start"]) == (4, 2)
    told = capsys.readouterr().err
    assert "checkpoint checkpoint_000003 is not sound: " in told
    assert "checkpoint_000002 is used instead" in told


def test_a_commit_that_a_death_cut_short_is_completed():
    with pytest.raises(train.TrainingFailedError):
        resumable(5, fail=3).fit()
    checkpoints = Path(os.environ["SHOAL_STORAGE_PATH"], "again/checkpoints")
    # The journal has the commit; the rename was still to come.
    os.rename(checkpoints / "checkpoint_000003", checkpoints / ".staging-1-000003")
    (checkpoints / ".staging-1-000003" / ".manifest.json").unlink()
    assert resumable(5).fit().metrics["start"] == 3
    assert not list(checkpoints.glob(".staging*"))


def test_a_commit_over_a_damaged_checkpoint_that_a_death_cut_short_is_completed():
    with pytest.raises(train.TrainingFailedError):
        resumable(5, fail=3).fit()
    checkpoints = Path(os.environ["SHOAL_STORAGE_PATH"], "again/checkpoints")
    # The name is still that of a damaged checkpoint, and the one that replaces it is whole in its staging place.
    shutil.copytree(checkpoints / "checkpoint_000003", checkpoints / ".staging-1-000003")
    (checkpoints / "checkpoint_000003/step").write_text("damage")
    assert resumable(5).fit().metrics["start"] == 3
    Checkpoint(checkpoints / "checkpoint_000003").verify()


def test_a_journal_with_a_torn_last_line_is_read():
    with pytest.raises(train.TrainingFailedError):
        resumable(5, fail=3).fit()
    directory = Path(os.environ["SHOAL_STORAGE_PATH"], "again")
    for name in ("journal.jsonl", "metrics.jsonl"):
        with open(directory / name, "a") as file:
            file.write('{"torn": ')
    result = resumable(5).fit()
    assert result.metrics["start"] == 3
    assert list(result.metrics_dataframe["step"]) == [0, 1, 2, 3, 4]
    assert Result.from_path(directory).metrics["step"] == 4


def test_a_run_that_a_living_driver_owns_is_refused(tmp_path: Path):
    driver = start_script(tmp_path, SCRIPT, "0.2")
    directory = tmp_path / "runs/resumed"
    wait_for(lambda: (directory / "metrics.jsonl").exists() and (directory / "metrics.jsonl").stat().st_size)
    with pytest.raises(RunExists, match=rf"being driven by process {driver.pid} on {socket.gethostname()}"):
        fit(lambda: None, name="resumed", resume="auto")
    driver.kill()
    driver.communicate()


def test_a_stale_lease_of_another_machine_is_taken_over(tmp_path: Path):
    lease = tmp_path / "lease.json"
    holder = {"token": "x", "host": "elsewhere", "pid": 1, "began": 0.0}
    lease.write_text(json.dumps({**holder, "beat": time.time()}))
    with pytest.raises(RunExists, match="process 1 on elsewhere"):
        LocalLease(tmp_path)
    lease.write_text(json.dumps({**holder, "beat": time.time() - 60}))
    mine = LocalLease(tmp_path)
    with pytest.raises(RunExists):
        LocalLease(tmp_path)
    mine.release()
    assert not lease.exists()
    LocalLease(tmp_path).release()


def test_a_driver_that_was_taken_for_dead_ends_and_leaves_the_run_to_the_other(tmp_path: Path):
    """A machine that slept, say: the other driver of a shared disk has seen no heartbeat of it for too long."""
    lease = tmp_path / "slept" / "lease.json"
    other = {"token": "x", "host": "elsewhere", "pid": 1, "began": 0.0, "beat": time.time()}

    def take_over() -> None:
        wait_for(lambda: (lease.parent / "metrics.jsonl").exists())
        lease.write_text(json.dumps(other))

    def train_func() -> None:
        for step in range(600):
            train.report({"step": step})
            time.sleep(0.05)

    thread = threading.Thread(target=take_over)
    thread.start()
    with pytest.raises(ControllerError, match=r"was taken over by process 1 on elsewhere"):
        fit(train_func, name="slept", storage_path=str(tmp_path))
    thread.join()
    assert json.loads(lease.read_text()) == other


def test_of_many_that_take_a_lease_at_once_one_has_it(tmp_path: Path):
    won: list[LocalLease] = []

    def take() -> None:
        try:
            won.append(LocalLease(tmp_path))
        except RunExists:
            return

    threads = [threading.Thread(target=take) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1


def test_a_trainer_is_restored_from_the_directory_of_its_run():
    trainer = DataParallelTrainer(
        counting,
        train_loop_config={"steps": 5, "fail": 3},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(verbose=0, failure_config=FailureConfig(max_failures=1)),
    )
    with pytest.raises(train.TrainingFailedError) as caught:
        trainer.fit()
    path = caught.value.path
    assert DataParallelTrainer.can_restore(path)
    assert not DataParallelTrainer.can_restore(Path(path).parent)
    with pytest.raises(train.TrainingFailedError, match="failure 2, and max_failures is 1"):
        DataParallelTrainer.restore(path, counting).fit()
    result = DataParallelTrainer.restore(path, counting, {"steps": 5}, run_config=RunConfig(verbose=0)).fit()
    assert result.path == path
    assert (result.metrics["step"], result.metrics["start"]) == (4, 3)
    assert len(list(Path(path, "logs").iterdir())) == 2


def test_what_restoring_needs_is_asked_for():
    with pytest.raises(train.TrainingFailedError) as caught:
        fit(counting, 1, {"steps": 3, "fail": 1, "object": threading.Event})
    with pytest.raises(ValueError, match="needs the training function again"):
        DataParallelTrainer.restore(caught.value.path)
    with pytest.raises(ValueError, match="more than plain data"):
        DataParallelTrainer.restore(caught.value.path, counting)
    with pytest.raises(StorageError, match="there is no run at"):
        DataParallelTrainer.restore("/nonexistent", counting)


def test_reading_a_result_unpickles_nothing(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(train.TrainingFailedError) as caught:
        fit(counting, 1, {"steps": 3, "fail": 1})

    def refuse(*arguments: object) -> None:
        raise AssertionError("something was unpickled")

    for module, name in ((pickle, "loads"), (pickle, "load"), (cloudpickle, "loads"), (cloudpickle, "load")):
        monkeypatch.setattr(module, name, refuse)
    result = Result.from_path(caught.value.path)
    assert "as asked" in str(result.error)
    assert len(result.metrics_dataframe) == 1
