"""Deaths at the worst moments, with real processes: while a checkpoint is copied, between its parts, at a restart."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from workers import fit, rank, start_script, wait_for

from shoal import train
from shoal.abc import Framework, WorkerSide
from shoal.errors import TrainingFailedError
from shoal.train import Checkpoint, DataParallelTrainer, FailureConfig, Result, RunConfig, ScalingConfig

SELF = Path(__file__)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def staged(n: int, file: str) -> Path:
    """Where a file of report ``n`` lies before the commit."""
    attempt = train.get_context().get_attempt()
    return Path(train.get_context().get_storage(), "checkpoints", f".staging-{attempt}-{n:06d}", file)


def parts(step: int) -> Checkpoint:
    directory = Path(train.get_context().get_trial_dir(), f"step{step}")
    directory.mkdir()
    (directory / f"a{rank()}").write_text(str(step))
    return Checkpoint.from_directory(directory)


def start() -> int:
    checkpoint = train.get_checkpoint()
    return 0 if checkpoint is None else int((checkpoint.path / "a0").read_text())


def step_by_step(moment: str, act: Any, last: int = 3) -> None:
    """Report whole checkpoints, and ``act`` at a moment of the second one in the first attempt that comes to it."""
    began = start()
    for step in range(began + 1, last + 1):
        train.collective.barrier()  # ranks do not wait for each other in report()
        checkpoint = parts(step)
        now = step == 2 and began < 2 and train.get_context().get_attempt() == 1
        if now and moment == "copy" and rank() == 0:
            os.mkfifo(checkpoint.path / "b")  # copying it waits for a writer that never comes
            import threading

            def when_half_is_there() -> None:
                wait_for(staged(2, "a0").exists)
                act()

            threading.Thread(target=when_half_is_there, daemon=True).start()
        if now and moment == "between" and rank() == 1:
            wait_for(staged(2, "a0").exists)
            act()
        train.report({"step": step, "start": began}, checkpoint)


class DiesWhileStarting(Framework):
    """Kills rank 1 of the second attempt before its function begins."""

    def start(self, worker: WorkerSide) -> None:
        attempt = worker.task.attempt  # type: ignore[attr-defined]
        if worker.ranks.world_rank == 1 and attempt == 2:
            die()


def whole(result: Result, steps: int = 3) -> None:
    """Every checkpoint is whole, and nothing else is there."""
    root = Path(result.path, "checkpoints")
    assert sorted(path.name for path in root.iterdir()) == [f"checkpoint_{n:06d}" for n in range(1, steps + 1)]
    for checkpoint, metrics in result.best_checkpoints:
        checkpoint.verify()
        files = {path.name: path.read_text() for path in checkpoint.path.iterdir() if not path.name.startswith(".")}
        assert files == {"a0": str(metrics["step"]), "a1": str(metrics["step"])}


@pytest.mark.parametrize("moment", ["copy", "between"])
def test_a_worker_is_killed_in_the_middle_of_a_checkpoint(moment: str) -> None:
    result = fit(lambda: step_by_step(moment, die), 2, max_failures=1)
    assert [attempt.checkpoint for attempt in result.attempts] == [0, 1]
    whole(result)


def test_a_worker_is_killed_while_the_group_starts_again() -> None:
    def work() -> None:
        if train.get_context().get_attempt() == 1:
            step_by_step("never", die, last=2)
            if rank() == 0:
                die()
        step_by_step("never", die)

    result = DataParallelTrainer(
        work,
        framework=DiesWhileStarting(),
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(
            verbose=0,
            log_to_driver=None,
            failure_config=FailureConfig(max_failures=2, restart_backoff_s=0.05),
        ),
    ).fit()
    assert [attempt.checkpoint for attempt in result.attempts] == [0, 2, 2]
    whole(result)


@pytest.mark.parametrize("moment", ["copy", "between", "restart"])
def test_the_driver_is_killed_at_the_same_moments_and_the_next_one_goes_on(moment: str, tmp_path: Path) -> None:
    flag = tmp_path / "now"
    driver = start_script(
        tmp_path,
        """
        import sys, time
        sys.path[:0] = sys.argv[3:]
        from pathlib import Path
        from test_deaths import die, step_by_step
        from workers import fit, rank
        from shoal import train

        def stay():
            Path(sys.argv[1]).touch()
            time.sleep(60)

        def work():
            if sys.argv[2] != "restart":
                step_by_step(sys.argv[2], stay)
            elif train.get_context().get_attempt() == 1:
                step_by_step("never", die, last=1)
                if rank() == 0:
                    die()
                time.sleep(60)
            elif rank() == 1:
                stay()

        fit(work, 2, name="mine", max_failures=1)
        """,
        str(flag),
        moment,
        str(SELF.parent),
    )
    try:
        wait_for(flag.exists)
    finally:
        driver.kill()
        driver.wait()
    result = fit(lambda: step_by_step("never", die), 2, name="mine", resume=True)
    assert result.metrics["start"] == 1
    assert [attempt.checkpoint for attempt in result.attempts][-1] == 1
    whole(result)


def test_a_storage_path_that_is_removed_under_the_run_fails_it_with_that_reason(tmp_path: Path) -> None:
    def work() -> None:
        train.report({"step": 1}, parts(1))
        if rank() == 0:
            shutil.rmtree(tmp_path / "runs")
        for step in range(2, 1000):
            train.report({"step": step}, parts(step))
            time.sleep(0.05)

    with pytest.raises(TrainingFailedError, match="No such file or directory"):
        fit(work, 1, max_failures=3, storage_path=tmp_path / "runs")
    assert not list(tmp_path.glob("runs/*/checkpoints/*/a0"))  # nothing was made again beside what was removed


def test_a_limit_of_memory_is_the_user_s_memory_error() -> None:
    def work() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
        bytearray(2 << 30)

    with pytest.raises(TrainingFailedError, match=r"rank 0 on .* raised MemoryError") as caught:
        fit(work, 1)
    assert isinstance(caught.value.__cause__, MemoryError)


def test_a_survivor_commits_the_replica_that_a_preempted_rank_died_before_reporting() -> None:
    """C13, with real processes: no failure is counted, and nobody waits for the dead."""

    def work() -> int:
        if train.get_context().get_attempt() == 2:
            return start()
        train.report({"step": 1})
        if rank() == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        while not train.get_preemption_info():
            time.sleep(0.01)
        if rank() == 1:
            die()
        time.sleep(0.5)  # rank 1 is gone by now
        train.report({"step": 2}, parts(2), replicated=True)
        return 0

    began = time.monotonic()
    grace = FailureConfig(max_failures=0, preemption_grace_s=30.0)
    result = fit(work, 2, failure_config=grace)
    assert result.return_value == 2
    assert [attempt.checkpoint for attempt in result.attempts] == [0, 2]
    assert time.monotonic() - began < 20


# ---- with the kernel's control groups -------------------------------------------------------------------------------


def control_group(kind: str, tmp_path: Path) -> Iterator[Path]:
    """A new control group of a kind, where this machine lets us have one."""
    root = Path("/sys/fs/cgroup", kind)
    group = root / f"shoal-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group of version 1 for {kind} can be made here: {error}")
    yield group
    deadline = time.monotonic() + 10
    while True:
        for pid in (group / "cgroup.procs").read_text().split():
            os.kill(int(pid), signal.SIGKILL)
        try:
            group.rmdir()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


@pytest.fixture
def small_memory(tmp_path: Path) -> Iterator[Path]:
    for group in control_group("memory", tmp_path):
        (group / "memory.limit_in_bytes").write_text(str(200 << 20))
        yield group


def test_a_worker_that_runs_out_of_memory_is_named_as_that(small_memory: Path) -> None:
    def work() -> None:
        if rank() == 1:
            (small_memory / "cgroup.procs").write_text(str(os.getpid()))
            kept = []
            while True:
                kept.append(os.urandom(10 << 20))
        time.sleep(60)

    with pytest.raises(
        TrainingFailedError, match=r"rank 1 on .* was killed by the kernel because memory ran out"
    ) as caught:
        fit(work, 2)
    assert "rank 0" not in str(caught.value).splitlines()[0]


@pytest.fixture
def freezer(tmp_path: Path) -> Iterator[Path]:
    for group in control_group("freezer", tmp_path):
        yield group
        (group / "freezer.state").write_text("THAWED")


@pytest.mark.timeout(90)
def test_a_worker_that_hangs_in_the_kernel_is_named_and_the_driver_ends(
    freezer: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """C9. A frozen process does not react to SIGKILL, as one that waits for a dead disk."""

    def work() -> None:
        if rank() == 1:
            (freezer / "cgroup.procs").write_text(str(os.getpid()))
            time.sleep(60)
        wait_for((freezer / "cgroup.procs").read_text)
        (freezer / "freezer.state").write_text("FROZEN")
        raise ValueError("the cause")

    began = time.monotonic()
    with pytest.raises(TrainingFailedError, match=r"rank 0 on .* raised ValueError: the cause"):
        fit(work, 2, verbose=1)
    assert time.monotonic() - began < 60
    (pid,) = (int(pid) for pid in (freezer / "cgroup.procs").read_text().split())
    said = capfd.readouterr().err
    assert f"rank 1 on {os.uname().nodename} does not end: process {pid} has not reacted to SIGKILL" in said
    (freezer / "freezer.state").write_text("THAWED")
    wait_for(lambda: not psutil.pid_exists(pid))
