"""What ends workers, hosts and drivers, and what people are told of it. Real processes, really killed."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
from workers import fit, rank, run_script, start_script, wait_for

import shoal
from shoal import train
from shoal._runtime import context
from shoal.engines.local import LocalEngine
from shoal.errors import RemoteError, StorageError, TrainingFailedError, WorkerDied
from shoal.train import Checkpoint, FailureConfig, Result


class NeedsTwo(Exception):
    """An exception that can be pickled, and not be made again from its pickle."""

    def __init__(self, first, second):
        super().__init__(f"{first} and {second}")


def failure(function, workers: int = 2, **arguments) -> TrainingFailedError:
    with pytest.raises(TrainingFailedError) as caught:
        fit(function, workers, **arguments)
    return caught.value


# ---- exceptions ----


def test_the_user_s_exception_is_told_first_with_rank_and_traceback():
    def train_func():
        train.report({"a": 1})
        if rank() == 1:
            raise KeyError("lr")
        time.sleep(60)

    began = time.monotonic()
    error = failure(train_func, name="keyerror")
    assert time.monotonic() - began < 20
    lines = str(error).splitlines()
    assert lines[0].startswith("rank 1 on ")
    assert lines[0].endswith("raised KeyError: 'lr'")
    assert any(line.startswith(f'  File "{__file__}", line ') and line.endswith("in train_func") for line in lines)
    assert '    raise KeyError("lr")' in str(error).replace("        raise", "    raise")
    assert "What followed from it:" in lines
    assert any(line.startswith("  rank 0 on ") for line in lines)
    assert "max_failures is 0" in str(error)
    assert isinstance(error.__cause__, KeyError)
    assert error.__cause__.args == ("lr",)
    assert list(error.worker_failures) == [1, 0]
    assert Path(error.path).name == "keyerror"
    result = Result.from_path(error.path)
    assert isinstance(result.error, TrainingFailedError)
    assert "KeyError" in str(result.error)


def test_an_exception_that_cannot_be_pickled_arrives_as_text():
    class Local(Exception):
        def __init__(self, lock):
            super().__init__("holds a lock")
            self.lock = lock

    def train_func():
        raise Local(threading.Lock())

    error = failure(train_func, 1)
    assert isinstance(error.__cause__, RemoteError)
    assert "Local: holds a lock" in str(error)
    assert "in train_func" in str(error)


def test_an_exception_that_cannot_be_made_again_arrives_as_text():
    def train_func():
        raise NeedsTwo("one", "two")

    error = failure(train_func, 1)
    assert isinstance(error.__cause__, RemoteError)
    assert "NeedsTwo: one and two" in str(error)


def test_an_exception_whose_text_raises_is_told_all_the_same():
    class Mute(Exception):
        def __str__(self):
            raise RuntimeError("no words")

    def train_func():
        raise Mute

    assert "Mute: <its __str__ raised RuntimeError>" in str(failure(train_func, 1))


# ---- the end of a worker's process ----


def test_sys_exit_zero_is_an_end_like_any_other():
    def train_func():
        train.report({"a": 1})
        sys.exit(0)

    assert fit(train_func).metrics["a"] == 1


def test_sys_exit_with_a_code_is_a_failure_with_that_code():
    def train_func():
        sys.exit(3)

    error = failure(train_func)
    assert "the function called sys.exit(3)" in str(error).splitlines()[0]


@pytest.mark.parametrize(
    ("end", "words"),
    [
        (lambda: os._exit(3), "ended with exit code 3 before its function returned"),
        (lambda: os._exit(0), "ended with exit code 0 before its function returned"),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "was ended by SIGKILL"),
        (lambda: os.kill(os.getpid(), signal.SIGSEGV), "was ended by SIGSEGV, a crash in native code"),
        (lambda: os.abort(), "was ended by SIGABRT"),
    ],
)
def test_each_end_of_a_process_is_named_as_what_it_was(end, words: str):
    def train_func():
        if rank() == 1:
            print("the last words")
            sys.stdout.flush()
            end()
        time.sleep(60)

    error = failure(train_func)
    first = str(error).splitlines()[0]
    assert first.startswith("rank 1 on ")
    assert words in first
    assert "pid " in first
    assert "peak memory " in first
    assert "the last words" in str(error)
    assert f"{os.sep}worker_1.log" in str(error)
    assert isinstance(error.__cause__, WorkerDied)
    assert isinstance(error.worker_failures[1], WorkerDied)


def test_native_output_of_a_dying_interpreter_is_kept():
    def train_func():
        import faulthandler

        faulthandler.enable()
        os.write(1, b"from below Python\n")
        os.kill(os.getpid(), signal.SIGSEGV)

    error = failure(train_func, 1)
    log = Path(error.path, "logs/worker_0.log").read_text()
    assert "from below Python" in log
    assert "Fatal Python error: Segmentation fault" in log


def test_threads_and_processes_that_a_function_leaves_behind_end_with_it(capsys: pytest.CaptureFixture[str]):
    def train_func():
        threading.Thread(target=time.sleep, args=(600,), name="forgotten").start()
        child = subprocess.Popen(["sleep", "600"])
        daemon = subprocess.Popen(["sleep", "600"], start_new_session=True)
        train.report({"children": [child.pid, daemon.pid]})

    began = time.monotonic()
    result = fit(train_func, 1, verbose=1)
    assert time.monotonic() - began < 20
    wait_for(lambda: not any(psutil.pid_exists(pid) for pid in result.metrics["children"]))
    assert "left threads running, which end now: forgotten" in capsys.readouterr().err


def test_a_daemon_of_a_finished_run_does_not_take_another_run_s_worker_with_it():
    def short():
        subprocess.Popen(["sleep", "600"], start_new_session=True)

    def long():
        for step in range(20):
            time.sleep(0.05)
            train.report({"step": step})

    results: list[Result] = []
    thread = threading.Thread(target=lambda: results.append(fit(long, 1)))
    thread.start()
    fit(short, 1)
    thread.join(60)
    assert results[0].metrics["step"] == 19


# ---- restarts and checkpoints ----


def counting(config):
    """Count to ten, with a checkpoint at every step; die in some steps of the first attempts."""
    checkpoint = train.get_checkpoint()
    start = int((checkpoint.path / "step").read_text()) + 1 if checkpoint else 0
    context_ = train.get_context()
    for step in range(start, 10):
        train.collective.barrier()
        if config["die"].get((context_.get_attempt(), step)) == rank():
            os.kill(os.getpid(), signal.SIGKILL)
        directory = Path(context_.get_trial_dir())
        (directory / "step").write_text(str(step))
        (directory / f"rng-{rank()}").write_text(f"{step}")
        train.report({"step": step, "start": start}, checkpoint=Checkpoint.from_directory(directory))


def test_a_restarted_group_goes_on_from_its_newest_checkpoint():
    result = fit(counting, 2, {"die": {(1, 4): 1, (2, 7): 0}}, max_failures=2)
    assert result.metrics["step"] == 9
    assert result.metrics["attempt"] == 3
    assert result.metrics["training_iteration"] == 10
    frame = result.metrics_dataframe
    assert list(frame["step"]) == list(range(10))
    assert list(frame["training_iteration"]) == list(range(1, 11))
    assert sorted(set(frame["start"])) == [0, 4, 7]


def test_a_checkpoint_has_the_files_of_all_ranks_and_a_manifest():
    result = fit(counting, 2, {"die": {}})
    assert result.checkpoint is not None
    path = result.checkpoint.path
    assert path.name == "checkpoint_000010"
    assert sorted(p.name for p in path.iterdir()) == [".manifest.json", "rng-0", "rng-1", "step"]
    assert [m["step"] for _, m in result.best_checkpoints] == list(range(9, -1, -1))
    assert not list(path.parent.glob(".staging*"))
    with result.checkpoint.as_directory() as directory:
        assert Path(directory, "step").read_text() == "9"


def test_only_the_chosen_checkpoints_are_kept():
    def train_func():
        for step in range(5):
            directory = Path(train.get_context().get_trial_dir())
            (directory / "x").write_text(str(step))
            scores = [0.1, float("nan"), 0.9, 0.5, 0.2]
            train.report({"acc": scores[step]}, checkpoint=Checkpoint(directory))

    keep = train.CheckpointConfig(num_to_keep=2, checkpoint_score_attribute="acc")
    result = fit(train_func, 1, checkpoint_config=keep)
    assert [m["acc"] for _, m in result.best_checkpoints] == [0.9, 0.5, 0.2]
    assert result.get_best_checkpoint("acc", "max").path.name == "checkpoint_000003"
    assert result.get_best_checkpoint("acc", "min").path.name == "checkpoint_000005"
    with pytest.raises(ValueError, match=r"no checkpoint has the metric 'loss'; their metrics are: acc"):
        result.get_best_checkpoint("loss", "min")
    assert len(list(Path(result.path, "checkpoints").iterdir())) == 3


def test_a_file_may_be_written_again_after_it_was_reported():
    def train_func():
        file = Path(train.get_context().get_trial_dir(), "x")
        for step in range(3):
            file.write_text(str(step))
            train.report({"step": step}, checkpoint=Checkpoint(file.parent))

    result = fit(train_func, 1)
    assert [(c.path / "x").read_text() for c, _ in result.best_checkpoints] == ["2", "1", "0"]


def test_the_newest_committed_checkpoint_is_seen_in_the_same_attempt():
    def train_func():
        directory = Path(train.get_context().get_trial_dir())
        (directory / "x").write_text("1")
        assert train.get_checkpoint() is None
        train.report({"a": 1}, checkpoint=Checkpoint(directory))
        deadline = time.monotonic() + 30
        while train.get_checkpoint() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        train.report({"found": (train.get_checkpoint().path / "x").read_text()})

    assert fit(train_func, 1).metrics["found"] == "1"


def test_a_run_may_begin_from_a_checkpoint_of_another(tmp_path: Path):
    (tmp_path / "step").write_text("6")
    trainer = train.DataParallelTrainer(
        counting,
        train_loop_config={"die": {}},
        run_config=train.RunConfig(verbose=0),
        resume_from_checkpoint=Checkpoint(tmp_path),
    )
    assert trainer.fit().metrics["start"] == 7


def test_a_checkpoint_that_is_no_directory_is_an_error_at_the_report():
    def train_func():
        train.report({"a": 1}, checkpoint=Checkpoint("/nonexistent"))

    error = failure(train_func, 1)
    assert isinstance(error.__cause__, FileNotFoundError)

    def wrong():
        train.report({"a": 1}, checkpoint="path")  # type: ignore[arg-type]

    assert "give train.Checkpoint.from_directory(path)" in str(failure(wrong, 1))


# ---- storage that fails ----


@pytest.fixture
def small_disk(tmp_path: Path):
    """A file system of about one megabyte, with room for the small files of a run beside five checkpoints."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1100k", "tmpfs", str(disk)], check=False)
    if mounted.returncode:
        pytest.skip("mounting a tmpfs needs root")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_full_disk_fails_the_run_with_that_reason_and_keeps_earlier_checkpoints(small_disk: Path):
    def train_func():
        directory = Path(train.get_context().get_trial_dir())
        for step in range(50):
            (directory / "model").write_bytes(os.urandom(200_000))
            train.report({"step": step}, checkpoint=Checkpoint(directory))

    error = failure(train_func, 1, storage_path=small_disk)
    assert isinstance(error.__cause__, StorageError)
    assert "No space left on device" in str(error)
    kept = Result.from_path(error.path).best_checkpoints
    assert kept
    assert all((checkpoint.path / "model").stat().st_size == 200_000 for checkpoint, _ in kept)


def test_a_disk_that_is_full_before_the_run_is_said_at_once(small_disk: Path):
    with pytest.raises(OSError, match="No space left"):
        (small_disk / "filler").write_bytes(b"x" * (2 << 20))
    with pytest.raises(StorageError, match=r"the run cannot be kept in .*: No space left on device"):
        fit(lambda: None, 1, storage_path=small_disk)


def test_freeing_space_and_resuming_goes_on(small_disk: Path):
    def train_func():
        checkpoint = train.get_checkpoint()
        start = int((checkpoint.path / "step").read_text()) + 1 if checkpoint else 0
        directory = Path(train.get_context().get_trial_dir())
        for step in range(start, 6):
            (directory / "step").write_text(str(step))
            (directory / "model").write_bytes(os.urandom(60_000))
            train.report({"step": step, "start": start}, checkpoint=Checkpoint(directory))

    (small_disk / "filler").write_bytes(b"x" * 800_000)
    fields = {"storage_path": small_disk, "name": "full", "resume": "auto"}
    error = failure(train_func, 1, **fields)
    assert "No space left on device" in str(error)
    assert Result.from_path(error.path).checkpoint is not None
    (small_disk / "filler").unlink()
    result = fit(train_func, 1, **fields)
    assert result.metrics["step"] == 5
    assert result.metrics["start"] > 0


def test_a_disk_that_is_full_of_logs_fails_the_run_with_that_reason(small_disk: Path):
    def train_func():
        while True:
            print("x" * 1000)

    error = failure(train_func, 1, storage_path=small_disk)
    assert "cannot be written to: No space left on device" in str(error)


# ---- the host ----


def engine() -> LocalEngine:
    found = context.engine_for(False)
    assert isinstance(found, LocalEngine)
    return found


def test_a_killed_host_takes_its_workers_along_and_is_replaced():
    def train_func(config):
        train.report({"pid": os.getpid()})
        if train.get_context().get_attempt() == 1:
            Path(config["file"]).write_text(str(os.getpid()))
            time.sleep(600)

    fit(lambda: None, 1)  # a host is there
    file = Path(os.environ["SHOAL_STORAGE_PATH"]).parent / "pid"
    first = engine().host_pid
    directory = Path(psutil.Process(first).cmdline()[-2])
    assert directory.is_dir()

    def kill() -> None:
        wait_for(lambda: file.exists() and file.read_text())
        assert first is not None
        os.kill(first, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    result = fit(train_func, 1, {"file": str(file)}, max_failures=1)
    killer.join()
    assert result.metrics["attempt"] == 2
    assert engine().host_pid != first
    wait_for(lambda: not psutil.pid_exists(int(file.read_text())))
    wait_for(lambda: not directory.exists())


def test_the_host_is_kept_between_fits_and_ends_with_shutdown():
    fit(lambda: None, 1)
    first = engine().host_pid
    fit(lambda: None, 1)
    assert engine().host_pid == first
    shoal.shutdown()
    assert first is not None
    assert not psutil.pid_exists(first)


def test_a_host_leaves_no_files_behind():
    def train_func():
        train.report({"scratch": train.get_context().get_trial_dir()})

    scratch = Path(fit(train_func, 1).metrics["scratch"])
    wait_for(lambda: not scratch.exists())
    host_directory = scratch.parent
    assert host_directory.exists()
    shoal.shutdown()
    assert not host_directory.exists()


# ---- the driver ----

SLOW = """
import os, sys, time
from pathlib import Path
from shoal import train
from shoal.train import DataParallelTrainer, ScalingConfig, RunConfig, Checkpoint
place = Path(sys.argv[1])
def train_func(config):
    (place / f"pid-{train.get_context().get_world_rank()}").write_text(str(os.getpid()))
    directory = Path(train.get_context().get_trial_dir())
    for step in range(100000):
        time.sleep(0.02)
        (directory / "step").write_text(str(step))
        train.report({"step": step}, checkpoint=Checkpoint(directory) if step % 10 == 0 else None)
try:
    result = DataParallelTrainer(train_func, scaling_config=ScalingConfig(num_workers=2),
                                 run_config=RunConfig(name="slow")).fit()
    print("interrupted:", result.interrupted, "steps:", result.metrics["step"], "checkpoint:", result.checkpoint)
except KeyboardInterrupt:
    print("ended at once")
"""


def worker_pids(place: Path) -> list[int]:
    metrics = place / "runs/slow/metrics.jsonl"
    files = [place / f"pid-{r}" for r in (0, 1)]
    wait_for(lambda: metrics.exists() and metrics.stat().st_size)
    wait_for(lambda: all(file.exists() and file.read_text() for file in files))
    return [int(file.read_text()) for file in files]


def descendants(pid: int) -> list[psutil.Process]:
    return psutil.Process(pid).children(recursive=True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_one_signal_stops_at_the_next_report_and_keeps_everything(tmp_path: Path, number: signal.Signals):
    driver = start_script(tmp_path, SLOW, str(tmp_path))
    pids = worker_pids(tmp_path)
    wait_for(lambda: list((tmp_path / "runs/slow/checkpoints").glob("checkpoint_*")))
    driver.send_signal(number)
    output, _ = driver.communicate(timeout=30)
    assert "interrupted: True" in output
    assert "checkpoint: Checkpoint(" in output
    assert not any(psutil.pid_exists(pid) for pid in pids)
    result = Result.from_path(tmp_path / "runs/slow")
    assert result.interrupted
    assert result.metrics["step"] >= 0


def test_two_interrupts_end_a_run_that_does_not_report(tmp_path: Path):
    asleep = "step and ((place / f'asleep-{train.get_context().get_world_rank()}').touch(), time.sleep(600))"
    driver = start_script(tmp_path, SLOW.replace("time.sleep(0.02)", asleep), str(tmp_path))
    pids = worker_pids(tmp_path)
    wait_for(lambda: all((tmp_path / f"asleep-{r}").exists() for r in (0, 1)))  # or one stops at its first report
    driver.send_signal(signal.SIGINT)
    time.sleep(0.2)
    assert driver.poll() is None
    driver.send_signal(signal.SIGINT)
    output, _ = driver.communicate(timeout=30)
    assert "ended at once" in output
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_nothing_survives_a_driver_that_is_killed(tmp_path: Path):
    driver = start_script(tmp_path, SLOW, str(tmp_path))
    pids = worker_pids(tmp_path)
    everyone = {p.pid for p in descendants(driver.pid)} | set(pids)
    assert len(everyone) >= 4  # host, fork server, two workers
    driver.kill()
    driver.communicate()
    wait_for(lambda: not any(_alive(pid) for pid in everyone), seconds=5)


def _alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_child_that_the_driver_forks_does_not_keep_the_host_alive(tmp_path: Path):
    output = run_script(
        tmp_path,
        """
        import os, time
        from shoal import train
        from shoal._runtime import context
        from shoal.train import DataParallelTrainer, RunConfig
        DataParallelTrainer(lambda: None, run_config=RunConfig(verbose=0)).fit()
        host = context.engine_for(False).host_pid
        pid = os.fork()
        if pid == 0:
            result = DataParallelTrainer(lambda: train.report({"a": 1}), run_config=RunConfig(verbose=0)).fit()
            print("in the child", result.metrics["a"], context.engine_for(False).host_pid != host, flush=True)
            os._exit(0)
        os.waitpid(pid, 0)
        DataParallelTrainer(lambda: None, run_config=RunConfig(verbose=0)).fit()
        print("in the parent", context.engine_for(False).host_pid == host)
        """,
    )
    assert "in the child 1 True" in output
    assert "in the parent True" in output


def test_a_run_that_fails_is_restarted_no_more_often_than_asked():
    def train_func():
        raise RuntimeError("always")

    error = failure(train_func, 2, max_failures=2)
    assert "that was failure 3, and max_failures is 2" in str(error)
    with pytest.raises(ValueError, match="max_failures=-2"):
        FailureConfig(max_failures=-2)


# ---- groups that hang ----


def test_a_hung_group_shows_the_stacks_of_all_ranks_and_starts_again(capsys: pytest.CaptureFixture[str]):
    def a_function_that_never_returns():
        time.sleep(600)

    def train_func():
        train.report({"attempt": train.get_context().get_attempt()})
        if train.get_context().get_attempt() == 1:
            if rank() == 1:
                a_function_that_never_returns()
            train.collective.barrier()

    limit = FailureConfig(max_failures=1, progress_timeout_s=1.0)
    result = fit(train_func, 2, verbose=1, failure_config=limit)
    assert result.metrics["attempt"] == 2
    stacks = sorted((Path(result.path) / "stacks").iterdir())
    assert [p.name for p in stacks] == ["attempt_1_rank_0.txt", "attempt_1_rank_1.txt"]
    assert "a_function_that_never_returns" in stacks[1].read_text()
    assert "barrier" in stacks[0].read_text()
    told = capsys.readouterr().err
    assert "for 1 s; asking all ranks for their stacks" in told
    assert "hung: it made no report for 1 s (progress_timeout_s)" in told


def test_a_stopped_worker_is_found_and_ended():
    def train_func():
        train.report({"attempt": train.get_context().get_attempt()})
        if rank() == 1 and train.get_context().get_attempt() == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        train.collective.barrier()

    limit = FailureConfig(max_failures=1, progress_timeout_s=1.0)
    result = fit(train_func, 2, failure_config=limit)
    assert result.metrics["attempt"] == 2
    assert "no answer" in (Path(result.path) / "stacks/attempt_1_rank_1.txt").read_text()


def test_a_rank_that_native_code_holds_is_shown_by_py_spy():
    def train_func():
        train.report({"attempt": train.get_context().get_attempt()})
        if rank() == 1 and train.get_context().get_attempt() == 1:
            held_by_native_code()
        train.collective.barrier()

    def held_by_native_code():
        ctypes.PyDLL(None).sleep(60)  # a C function that keeps the interpreter's lock: nothing else of Python runs

    limit = FailureConfig(max_failures=1, progress_timeout_s=1.0)
    result = fit(train_func, 2, failure_config=limit)
    assert result.metrics["attempt"] == 2
    stacks = (Path(result.path) / "stacks/attempt_1_rank_1.txt").read_text()
    assert "no answer" in stacks
    assert "Native stacks, by py-spy:" in stacks
    assert "held_by_native_code" in stacks


def test_a_worker_that_ignores_sigterm_is_ended_all_the_same():
    def train_func():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if rank() == 1:
            raise ValueError("bad")
        time.sleep(600)

    assert "raised ValueError: bad" in str(failure(train_func))


def test_limits_of_failures_are_checked():
    with pytest.raises(ValueError, match="progress_timeout_s=0"):
        FailureConfig(progress_timeout_s=0)
    with pytest.raises(ValueError, match="restart_backoff_s=-1"):
        FailureConfig(restart_backoff_s=-1)


# ---- preemption ----


def test_a_preempted_group_saves_at_the_same_call_on_every_rank_and_goes_on(tmp_path: Path):
    def train_func(config):
        checkpoint = train.get_checkpoint()
        start = int((checkpoint.path / "step").read_text()) if checkpoint else 0
        directory = Path(train.get_context().get_trial_dir())
        first = train.get_context().get_attempt() == 1
        for step in range(start, 100_000 if first else start + 3):
            if first and step == 5 and rank() == 1:
                os.kill(os.getpid(), signal.SIGTERM)
            info = train.get_preemption_info()
            if info:
                Path(config["place"], f"told-{rank()}").write_text(f"{step} {info.preempted_node_to_ranks}")
                (directory / "step").write_text(str(step))
                train.report({"step": step, "start": start}, checkpoint=Checkpoint(directory))
                return
            time.sleep(0.001 * rank())
            train.report({"step": step, "start": start})

    policy = FailureConfig(max_failures=0, preemption_grace_s=30)
    result = fit(train_func, 3, {"place": str(tmp_path)}, failure_config=policy)
    told = {(tmp_path / f"told-{r}").read_text() for r in range(3)}
    assert len(told) == 1
    assert "[1]" in told.pop()
    assert result.metrics["start"] > 0
    assert result.metrics["attempt"] == 2
    assert [a.reason for a in result.attempts] == ["the function ended because of a preemption", "finished"]


def test_a_group_that_does_not_ask_is_ended_after_the_grace_and_starts_again():
    def train_func():
        train.report({"a": 1})
        if train.get_context().get_attempt() == 1:
            if rank() == 1:
                os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(600)  # in native code: no Python signal handler would run

    result = fit(train_func, 2, max_failures=0)
    assert result.metrics["attempt"] == 2
    assert result.attempts[0].reason.startswith("rank 1 on ")
    assert result.attempts[0].reason.endswith("was preempted")


def test_preemptions_have_a_budget_of_their_own():
    def train_func():
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(600)

    error = failure(train_func, 1, failure_config=FailureConfig(max_failures=9, max_preemption_failures=1))
    assert "that was preemption 2, and max_preemption_failures is 1" in str(error)
    with pytest.raises(ValueError, match="preemption_grace_s=-1"):
        FailureConfig(preemption_grace_s=-1)


def test_a_signal_to_a_child_of_a_worker_is_the_child_s_alone():
    def train_func():
        child = os.fork()
        if child == 0:
            time.sleep(600)
        time.sleep(0.2)
        os.kill(child, signal.SIGTERM)
        _, status = os.waitpid(child, 0)
        time.sleep(0.2)
        train.report({"signal": os.WTERMSIG(status), "told": train.get_preemption_info() is not None})

    result = fit(train_func, 1, failure_config=FailureConfig(preemption_grace_s=30))
    assert result.metrics["signal"] == signal.SIGTERM
    assert result.metrics["told"] is False
    assert result.metrics["attempt"] == 1
