"""Checkpoints that the user's own code stores, the list of kept ones, and scores that come later."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from workers import fit, rank

from shoal import train
from shoal.errors import StorageError, TrainingFailedError
from shoal.train import (
    Checkpoint,
    CheckpointConfig,
    CheckpointConsistencyMode,
    CheckpointUploadMode,
    DataParallelTrainer,
    ReportedCheckpointStatus,
    Result,
    RunConfig,
    ScalingConfig,
    ValidationConfig,
    ValidationTaskConfig,
)


def saved(text: str) -> Checkpoint:
    directory = tempfile.mkdtemp()
    Path(directory, "model.txt").write_text(text)
    return Checkpoint.from_directory(directory)


def text_of(checkpoint: Checkpoint) -> str:
    return str((checkpoint.path / "model.txt").read_text())


# ---- the user's own way of storing ----------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [CheckpointUploadMode.SYNC, CheckpointUploadMode.ASYNC])
def test_a_function_of_the_user_s_stores_checkpoints(tmp_path: Path, mode: CheckpointUploadMode) -> None:
    def upload(checkpoint: Checkpoint, name: str) -> Checkpoint:
        target = tmp_path / "elsewhere" / name
        shutil.copytree(checkpoint.path, target)
        return Checkpoint.from_directory(target)

    def work() -> None:
        start = train.get_checkpoint()
        first = 1 if start is None else int(text_of(start)) + 1
        for step in range(first, 4):
            checkpoint = saved(str(step)) if rank() == 0 else None
            train.report({"step": step}, checkpoint, checkpoint_upload_mode=mode, checkpoint_upload_fn=upload)
            if step == 2 and first == 1:
                [c.checkpoint for c in train.get_all_reported_checkpoints()]
                raise RuntimeError("once")

    result = fit(work, 2, max_failures=1, checkpoint_config=CheckpointConfig(num_to_keep=1))
    assert result.checkpoint == Checkpoint(tmp_path / "elsewhere" / "checkpoint_000003")
    assert result.attempts[1].checkpoint == 2
    assert Result.from_path(result.path).checkpoint == result.checkpoint
    # What the user's code has stored is the user's to remove.
    assert len(list((tmp_path / "elsewhere").iterdir())) == 3
    assert len(result.best_checkpoints) == 1


def test_a_checkpoint_that_is_stored_already_is_kept_where_it_is(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "model.txt").write_text("7")

    def work() -> None:
        start = train.get_checkpoint()
        if start is not None:
            assert text_of(start) == "7"
            return
        train.report(
            {}, Checkpoint.from_directory(tmp_path / "mine"), checkpoint_upload_mode=CheckpointUploadMode.NO_UPLOAD
        )
        raise RuntimeError("once")

    result = fit(work, 1, max_failures=1)
    assert result.checkpoint == Checkpoint(tmp_path / "mine")
    assert (tmp_path / "mine" / "model.txt").exists()


def test_a_checkpoint_stored_elsewhere_that_is_gone_is_passed_over(tmp_path: Path) -> None:
    def work() -> None:
        if train.get_checkpoint() is None:
            for name in ("a", "b"):
                shutil.copytree(saved(name).path, tmp_path / name)
                train.report({}, Checkpoint(tmp_path / name), checkpoint_upload_mode=CheckpointUploadMode.NO_UPLOAD)
            shutil.rmtree(tmp_path / "b")
            raise RuntimeError("once")

    result = fit(work, 1, max_failures=1)
    assert result.checkpoint == Checkpoint(tmp_path / "a")


def test_mistakes_with_ways_of_storing_are_said(tmp_path: Path) -> None:
    def nothing_returned() -> None:
        train.report({}, saved("1"), checkpoint_upload_fn=lambda checkpoint, name: None)  # type: ignore[arg-type,return-value]

    with pytest.raises(TrainingFailedError, match=r"it has to return the train\.Checkpoint where it has stored"):
        fit(nothing_returned, 1)

    def raises() -> None:
        def upload(checkpoint: Checkpoint, name: str) -> Checkpoint:
            raise ValueError("the vault is closed")

        train.report({}, saved("1"), checkpoint_upload_fn=upload)

    with pytest.raises(TrainingFailedError, match="could not be stored: the vault is closed") as caught:
        fit(raises, 1)
    assert isinstance(caught.value.__cause__, StorageError)

    def both() -> None:
        train.report(
            {},
            saved("1"),
            checkpoint_upload_mode=CheckpointUploadMode.NO_UPLOAD,
            checkpoint_upload_fn=lambda checkpoint, name: checkpoint,
        )

    with pytest.raises(TrainingFailedError, match="NO_UPLOAD says that nothing is to be stored"):
        fit(both, 1)

    def reserved() -> None:
        train.report({}, saved("1"), checkpoint_dir_name="best.attempt-2")

    with pytest.raises(TrainingFailedError, match="ends like the names that shoal makes"):
        fit(reserved, 1)


def test_the_directory_is_removed_after_storing_in_asynchronous_mode_and_kept_otherwise() -> None:
    def work() -> list[bool]:
        directories = [saved("1"), saved("2"), saved("3")]
        train.report({}, directories[0])
        train.report({}, directories[1], checkpoint_upload_mode=CheckpointUploadMode.ASYNC)
        train.report(
            {},
            directories[2],
            checkpoint_upload_mode=CheckpointUploadMode.ASYNC,
            delete_local_checkpoint_after_upload=False,
        )
        train.get_all_reported_checkpoints()
        deadline = time.monotonic() + 10
        while os.path.exists(directories[1].path) and time.monotonic() < deadline:
            time.sleep(0.01)
        return [os.path.exists(directory.path) for directory in directories]

    assert fit(work, 1).return_value == [True, False, True]


# ---- the list of kept checkpoints -----------------------------------------------------------------------------------


def test_every_rank_sees_the_checkpoints_that_are_kept_with_their_metrics() -> None:
    def work() -> None:
        for step in range(1, 4):
            train.report(
                {"step": step},
                saved(str(step)) if rank() == 0 else None,
                checkpoint_upload_mode=CheckpointUploadMode.ASYNC,
            )
        kept = train.get_all_reported_checkpoints(CheckpointConsistencyMode.COMMITTED)
        assert [text_of(c.checkpoint) for c in kept] == ["2", "3"]
        assert [c.metrics for c in kept] == [{"step": 2}, {"step": 3}]
        assert {c.status for c in kept} == {ReportedCheckpointStatus.COMMITTED}
        train.report({"last": len(kept)})

    result = fit(work, 2, checkpoint_config=CheckpointConfig(num_to_keep=2))
    assert result.metrics["last"] == 2


def test_a_rank_that_others_do_not_follow_is_not_kept_waiting_for_ever() -> None:
    def work() -> None:
        if rank() == 0:
            train.report({}, saved("1"))
            with pytest.raises(TimeoutError, match=r"up to report 1 were not settled within 0\.2 s"):
                train.get_all_reported_checkpoints(timeout_s=0.2)
        else:
            time.sleep(1.5)

    fit(work, 2)


# ---- scores that come while training goes on ------------------------------------------------------------------------


def score(checkpoint: Checkpoint, scale: float = 1.0, **behaviour: Any) -> dict[str, Any]:
    with checkpoint.as_directory() as directory:
        step = int(Path(directory, "model.txt").read_text())
    if behaviour.get("fail") == step:
        raise ValueError("cannot score that")
    if behaviour.get("kill") == step:
        os.kill(os.getpid(), 9)
    if behaviour.get("slow") == step:
        time.sleep(60)
    return {"accuracy": -abs(step - 2) * scale, "pid": os.getpid(), "size": train.get_context().get_world_size()}


def scored_run(work: Any, config: ValidationConfig | None = None, **run: Any) -> Result:
    return DataParallelTrainer(
        work,
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(verbose=1, log_to_driver=None, **run),
        validation_config=config or ValidationConfig(score),
    ).fit()


def four_steps() -> None:
    for step in range(1, 5):
        first = rank() == 0
        train.report({"step": step, "pid": 0}, saved(str(step)) if first else None, validation=first)


def test_committed_checkpoints_are_scored_on_a_worker_of_their_own_and_kept_by_that() -> None:
    keep = CheckpointConfig(num_to_keep=2, checkpoint_score_attribute="accuracy")
    result = scored_run(four_steps, checkpoint_config=keep)
    kept = {metrics["step"]: metrics for _, metrics in result.best_checkpoints}
    assert sorted(kept) in ([2, 3, 4], [1, 2, 4])  # the two best, and the newest
    assert kept[2]["accuracy"] == 0
    assert all(metrics["pid"] > 0 for metrics in kept.values())
    best = result.get_best_checkpoint("accuracy", "max")
    assert best is not None
    assert text_of(best) == "2"
    again = Result.from_path(result.path)
    assert again.best_checkpoints == result.best_checkpoints
    # The report's own metrics are what was reported.
    assert "accuracy" not in result.metrics


def test_training_goes_on_while_a_checkpoint_is_scored_and_can_wait_for_the_score() -> None:
    def work() -> None:
        train.report({"step": 1}, saved("1"), validation=ValidationTaskConfig(fn_kwargs={"scale": 3.0}))
        (pending,) = train.get_all_reported_checkpoints(CheckpointConsistencyMode.COMMITTED)
        assert pending.status is ReportedCheckpointStatus.PENDING_VALIDATION
        (scored,) = train.get_all_reported_checkpoints()
        assert scored.status is ReportedCheckpointStatus.VALIDATED
        assert (scored.metrics["accuracy"], scored.metrics["size"]) == (-3.0, 2)

    scored_run(work, ValidationConfig(score, scaling_config=ScalingConfig(num_workers=2)))


@pytest.mark.parametrize(
    ("behaviour", "words"),
    [
        ({"fail": 2}, "rank 0 on .* raised ValueError: cannot score that"),
        ({"kill": 2}, "rank 0 on .* was ended by SIGKILL"),
    ],
)
def test_a_score_that_fails_is_said_and_the_run_goes_on(
    behaviour: dict[str, Any], words: str, capfd: pytest.CaptureFixture[str]
) -> None:
    config = ValidationConfig(score, ValidationTaskConfig(fn_kwargs=behaviour))
    result = scored_run(four_steps, config)
    scored = {metrics["step"] for _, metrics in result.best_checkpoints if "accuracy" in metrics}
    assert scored == {1, 3, 4}
    import re

    assert re.search(f"the checkpoint of report 2 could not be scored: {words}", capfd.readouterr().err)


def test_a_score_that_takes_too_long_is_given_up(capfd: pytest.CaptureFixture[str]) -> None:
    config = ValidationConfig(score, ValidationTaskConfig(fn_kwargs={"slow": 1}, timeout_s=0.5))
    result = scored_run(four_steps, config)
    assert {metrics["step"] for _, metrics in result.best_checkpoints if "accuracy" in metrics} == {2, 3, 4}
    assert "report 1 could not be scored: it took longer than 0.5 s" in capfd.readouterr().err


def test_scores_that_a_failed_run_still_owed_are_made_by_the_next_driver() -> None:
    def work() -> None:
        if train.get_checkpoint() is None:
            train.report({"step": 1}, saved("1"), validation=ValidationTaskConfig(fn_kwargs={"slow": 1}))
            raise RuntimeError("stop here")

    with pytest.raises(TrainingFailedError, match="stop here"):
        scored_run(work, name="owes")

    def quick(checkpoint: Checkpoint, **_: Any) -> dict[str, Any]:
        return {"accuracy": 1.0}

    result = scored_run(work, ValidationConfig(quick), name="owes", resume="auto")
    assert [metrics["accuracy"] for _, metrics in result.best_checkpoints] == [1.0]


def test_mistakes_with_validations_are_said(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(TypeError, match=r"ValidationConfig\(fn=3\)"):
        ValidationConfig(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="timeout_s=-1"):
        ValidationTaskConfig(timeout_s=-1)
    with pytest.raises(ValueError, match="not by both"):
        ValidationConfig(score, ray_remote_kwargs={"num_cpus": 1}, scaling_config=ScalingConfig())

    def without_checkpoint() -> None:
        train.report({}, validation=True)

    with pytest.raises(TrainingFailedError, match="needs a checkpoint, which is what is scored"):
        fit(without_checkpoint, 1)

    def not_plain() -> None:
        train.report({}, saved("1"), validation=ValidationTaskConfig(fn_kwargs={"model": object()}))

    with pytest.raises(TrainingFailedError, match="model"):
        fit(not_plain, 1)
    fit(four_steps, 1, verbose=1)
    assert "the trainer has no validation_config" in capfd.readouterr().err
    result = scored_run(four_steps, ValidationConfig(lambda checkpoint: 3))  # type: ignore[arg-type,return-value]
    assert result.metrics["step"] == 4
    assert "the validation function returned 3, a int, not a mapping" in capfd.readouterr().err
