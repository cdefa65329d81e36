"""A run on this machine, from ``fit()`` to its result."""

from __future__ import annotations

import itertools
import json
import math
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from workers import fit, rank, run_script

import shoal
from shoal import train
from shoal._core import jsonl
from shoal._runtime.channel import Channel
from shoal.errors import InfeasibleRequest, OutsideWorkerError, RunExists, StorageError, UnpicklableError
from shoal.train import DataParallelTrainer, Result, RunConfig, ScalingConfig


def test_the_last_report_of_rank_0_is_in_the_result():
    def train_func(config):
        for step in range(3):
            train.report({"step": step, "rank": rank(), "x": config["x"]})
        return "done"

    result = fit(train_func, config={"x": 7})
    assert result.metrics["step"] == 2
    assert result.metrics["rank"] == 0
    assert result.metrics["x"] == 7
    assert result.metrics["training_iteration"] == 3
    assert result.return_value == "done"
    assert result.config == {"x": 7}
    assert not result.interrupted
    assert result.error is None
    assert result.checkpoint is None


def test_the_frame_of_metrics_has_a_row_for_each_report():
    def train_func():
        for step in range(5):
            train.report({"step": step, "eval": {"acc": step / 10}})

    frame = fit(train_func).metrics_dataframe
    assert list(frame["step"]) == [0, 1, 2, 3, 4]
    assert frame["eval/acc"].iloc[-1] == 0.4


def test_each_worker_knows_its_place():
    def train_func():
        context = train.get_context()
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES")
        train.report(
            {
                "world": [context.get_world_rank(), context.get_world_size()],
                "local": [context.get_local_rank(), context.get_local_world_size(), context.get_node_rank()],
                "run": [context.get_experiment_name(), context.get_trial_name()],
                "environment": {name: os.environ.get(name) for name in names},
                "scratch": os.path.isdir(context.get_trial_dir()),
                "directory": os.getcwd(),
                "arguments": sys.argv,
                "metadata": context.get_metadata(),
            }
        )

    trainer = DataParallelTrainer(
        train_func,
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(name="place", verbose=0),
        metadata={"a": 1},
    )
    metrics = trainer.fit().metrics
    assert metrics["world"] == [0, 2]
    assert metrics["local"] == [0, 2, 0]
    assert metrics["run"] == ["place", "place"]
    assert metrics["environment"] == {
        "RANK": "0",
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "2",
        "OMP_NUM_THREADS": str(max(1, len(os.sched_getaffinity(0)) // 2)),
        "CUDA_VISIBLE_DEVICES": "",
    }
    assert metrics["scratch"] is True
    assert metrics["directory"] == os.getcwd()
    assert metrics["arguments"] == sys.argv
    assert metrics["metadata"] == {"a": 1}


def test_every_rank_runs(tmp_path: Path):
    def train_func(config):
        Path(config["place"], f"rank-{rank()}").touch()

    fit(train_func, 4, {"place": str(tmp_path)})
    assert sorted(p.name for p in tmp_path.glob("rank-*")) == ["rank-0", "rank-1", "rank-2", "rank-3"]


def test_a_function_may_take_the_configuration_or_nothing_or_be_a_lambda_or_an_object():
    class Callable:
        def __call__(self, config):
            train.report({"x": config["x"]})

    assert fit(lambda: train.report({"x": 1})).metrics["x"] == 1
    assert fit(lambda config: train.report({"x": config["x"]}), config={"x": 2}).metrics["x"] == 2
    assert fit(Callable(), config={"x": 3}).metrics["x"] == 3


def test_a_run_directory_tells_everything():
    def train_func(config):
        print("to stdout from", rank())
        os.write(2, b"to stderr, past Python\n")
        train.report({"loss": 0.5})

    result = fit(train_func, 2, {"lr": 0.1}, name="told")
    path = Path(result.path)
    assert path.name == "told"
    assert json.loads((path / "run.json").read_text())["trainer"] == "DataParallelTrainer"
    assert json.loads((path / "params.json").read_text()) == {"lr": 0.1}
    assert json.loads((path / "metrics.jsonl").read_text())["loss"] == 0.5
    assert (path / "progress.csv").read_text().splitlines()[0].startswith("loss,training_iteration")
    assert json.loads((path / "result.json").read_text())["state"] == "FINISHED"
    for r in (0, 1):
        log = (path / f"logs/worker_{r}.log").read_text()
        assert f"to stdout from {r}" in log
        assert "to stderr, past Python" in log
    kinds = [json.loads(line)["record"] for line in (path / "journal.jsonl").read_text().splitlines()]
    assert kinds == ["DriverStarted", "AttemptStarted", "AttemptEnded", "RunEnded"]


def test_a_result_is_read_back_from_its_directory():
    def train_func():
        for step in range(3):
            train.report({"step": step, "bad": math.nan})
        return 5

    result = fit(train_func)
    again = Result.from_path(result.path)
    assert repr(again.metrics) == repr(result.metrics)
    assert again.config == result.config
    assert len(again.metrics_dataframe) == 3
    assert not again.interrupted
    with pytest.raises(StorageError, match="there is no run at"):
        Result.from_path(Path(result.path).parent)


def test_two_fits_of_one_trainer_are_two_runs():
    trainer = DataParallelTrainer(lambda: train.report({"pid": os.getpid()}), run_config=RunConfig(verbose=0))
    first, second = trainer.fit(), trainer.fit()
    assert first.path != second.path
    assert first.metrics["pid"] != second.metrics["pid"]


def test_two_fits_at_once_from_two_threads_do_not_meet():
    def train_func(config):
        for step in range(20):
            train.report({"who": config["who"], "step": step})

    results: dict[int, Result] = {}
    threads = [
        threading.Thread(target=lambda who=who: results.update({who: fit(train_func, 2, {"who": who})}))
        for who in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert {who: (r.metrics["who"], r.metrics["step"]) for who, r in results.items()} == {
        who: (who, 19) for who in range(4)
    }


def test_groups_that_ask_for_all_cpus_run_one_after_the_other():
    cpus = len(os.sched_getaffinity(0))

    def train_func():
        began = time.time()
        time.sleep(0.3)
        train.report({"began": began, "ended": time.time()})

    results: list[Result] = []
    threads = [
        threading.Thread(target=lambda: results.append(fit(train_func, 1, resources={"CPU": cpus}))) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    spans = sorted((r.metrics["began"], r.metrics["ended"]) for r in results)
    assert all(earlier[1] <= later[0] for earlier, later in itertools.pairwise(spans))


def test_metrics_may_be_numpy_numbers_nested_and_not_finite():
    def train_func():
        train.report(
            {
                "f": np.float32(0.5),
                "i": np.int64(3),
                "b": np.bool_(True),
                "one": np.array([[2.0]]),
                "deep": {"list": [1, "two", None, {"x": np.float64(1.5)}]},
                "nan": math.nan,
                "inf": np.float32("-inf"),
            }
        )

    result = fit(train_func, 1)
    metrics = result.metrics
    assert metrics["f"] == 0.5
    assert metrics["i"] == 3
    assert metrics["b"] is True
    assert metrics["one"] == 2.0
    assert metrics["deep"] == {"list": [1, "two", None, {"x": 1.5}]}
    assert math.isnan(metrics["nan"])
    assert metrics["inf"] == -math.inf
    line = Path(result.path, "metrics.jsonl").read_text()
    json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert math.isnan(jsonl.decode(line)["nan"])


def test_a_hundred_thousand_reports_are_all_kept():
    def train_func():
        import resource

        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for step in range(100_000):
            train.report({"step": step})
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before

    result = fit(train_func, 2)
    with open(Path(result.path, "metrics.jsonl"), "rb") as file:
        steps = [json.loads(line)["step"] for line in file]
    assert steps == list(range(100_000))
    assert result.return_value < 64 * 1024  # KiB
    assert Path(result.path, "progress.csv").read_text().count("\n") == 100_001


def test_new_keys_never_stand_under_another_key_s_name():
    def train_func():
        train.report({"a": 1})
        train.report({"b": 2, "a": 3})
        train.report({"c": 4})

    frame = Path(fit(train_func, 1).path, "progress.csv").read_text().splitlines()
    names = frame[0].split(",")
    rows = [dict(zip(names, line.split(","), strict=True)) for line in frame[1:]]
    assert [(r["a"], r["b"], r["c"]) for r in rows] == [("1", "", ""), ("3", "2", ""), ("", "", "4")]


def test_ranks_may_report_a_different_number_of_times(capsys: pytest.CaptureFixture[str]):
    def train_func():
        for step in range(3 if rank() == 0 else 1):
            train.report({"step": step})

    assert fit(train_func, verbose=1).metrics["step"] == 2
    assert "reported a different number of times (rank 0: 3, rank 1: 1)" in capsys.readouterr().err


def test_the_console_shows_the_chosen_ranks(capsys: pytest.CaptureFixture[str]):
    def train_func():
        for _ in range(3):
            print(f"similar line of {rank()}")

    fit(train_func, 3, log_to_driver=(0,))
    assert capsys.readouterr().out == "[rank 0] similar line of 0\n" * 3
    fit(train_func, 3, log_to_driver="all")
    out = capsys.readouterr().out
    assert all(out.count(f"[rank {r}] similar line of {r}\n") == 3 for r in range(3))
    fit(train_func, 3, log_to_driver=None)
    assert capsys.readouterr().out == ""


def test_a_chatty_worker_loses_no_line():
    def train_func():
        for i in range(50_000):
            print("line", i)
        sys.stdout.write("the end without a line break")

    log = Path(fit(train_func, 1).path, "logs/worker_0.log").read_text()
    assert log == "".join(f"line {i}\n" for i in range(50_000)) + "the end without a line break"


def test_a_function_of_an_earlier_fit_is_not_run_again():
    source = "def train_func():\n    from shoal import train\n    train.report({'version': VERSION})"
    for version in (1, 2):
        scope: dict[str, object] = {"VERSION": version, "__name__": "__main__"}
        exec(source, scope)
        assert fit(scope["train_func"], 1).metrics["version"] == version  # type: ignore[arg-type]


# ---- inside this process -------------------------------------------------------------------------------------------


def test_no_workers_at_all_runs_in_this_process():
    seen: list[int] = []

    def train_func(config):
        seen.append(os.getpid())
        train.report({"x": config["x"], "size": train.get_context().get_world_size()})
        return threading.current_thread()

    result = fit(train_func, 0, {"x": 4})
    assert seen == [os.getpid()]
    assert (result.metrics["x"], result.metrics["size"]) == (4, 1)
    with pytest.raises(OutsideWorkerError, match=r"train\.report\(\) works only inside the function"):
        train.report({"x": 1})


def test_an_exception_in_this_process_keeps_its_frames():
    def train_func():
        raise KeyError("lr")

    with pytest.raises(train.TrainingFailedError) as caught:
        fit(train_func, 0)
    error = caught.value.__cause__
    assert isinstance(error, KeyError)
    assert error.__traceback__ is not None
    frames = [f.name for f in __import__("traceback").extract_tb(error.__traceback__)]
    assert frames[-1] == "train_func"


def test_local_mode_runs_every_function_in_this_process():
    shoal.init(local_mode=True)
    try:
        assert fit(lambda: train.report({"pid": os.getpid()}), 4).metrics["pid"] == os.getpid()
    finally:
        shoal.shutdown()


# ---- bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (3, "train_loop_per_worker=3 is a int, which cannot be called"),
        (lambda a, b: None, r"cannot be called with one argument, the configuration, or with none"),
        (lambda *, a: None, r"cannot be called with one argument"),
    ],
)
def test_what_cannot_be_a_training_function_is_refused(function: object, words: str):
    with pytest.raises(TypeError, match=words):
        DataParallelTrainer(function)  # type: ignore[arg-type]


def test_a_configuration_for_a_function_that_takes_none_is_refused():
    with pytest.raises(TypeError, match="takes no argument"):
        DataParallelTrainer(lambda: None, train_loop_config={"lr": 1})


def test_what_cannot_be_sent_to_workers_is_named():
    lock = threading.Lock()

    def train_func():
        with lock:
            pass

    with pytest.raises(UnpicklableError, match=r"variable 'lock', captured from outside by the function .*train_func"):
        fit(train_func)
    with pytest.raises(
        UnpicklableError, match=r"train_loop_config\['data'\]\['lock'\], a _thread\.lock, cannot be sent"
    ):
        fit(lambda config: None, config={"data": {"lock": lock}})


@pytest.mark.parametrize(
    ("metrics", "words"),
    [
        ({"model": object()}, "metric 'model' is a builtins.object"),
        ({"eval": {"curve": np.zeros(3)}}, r"metric 'eval/curve' is a ndarray of shape \(3,\)"),
        ({"big": 2**70}, "metric 'big' is an integer of more than 64 bits"),
        ({3: 1}, "the metric key 3 must be a text"),
        ([1, 2], "takes a dict of metrics"),
    ],
)
def test_what_is_no_metric_is_a_type_error_with_its_key(metrics: object, words: str):
    with pytest.raises(train.TrainingFailedError) as caught:
        fit(lambda: train.report(metrics), 1)  # type: ignore[arg-type]
    assert isinstance(caught.value.__cause__, TypeError)
    with pytest.raises(TypeError, match=words):
        raise caught.value.__cause__


def test_a_report_outside_of_a_worker_says_where_it_belongs():
    with pytest.raises(OutsideWorkerError, match="only inside the function that a trainer runs"):
        train.report({"loss": 1})
    with pytest.raises(OutsideWorkerError, match=r"train\.get_context\(\)"):
        train.get_context()


def test_gpus_that_are_not_there_are_said_at_once():
    trainer = DataParallelTrainer(
        lambda: None, scaling_config=ScalingConfig(num_workers=2, use_gpu=True), run_config=RunConfig(name="gpus")
    )
    with pytest.raises(InfeasibleRequest, match=r"GPU: 2 asked \(2 x 1\), 0 there\. Use ScalingConfig\(use_gpu=False"):
        trainer.fit()
    assert not Path(os.environ["SHOAL_STORAGE_PATH"], "gpus").exists()


@pytest.mark.parametrize("resources", [{"CPU": 1000}, {"license": 1}, {"memory": 1e15}])
def test_more_than_exists_is_said_at_once(resources: dict[str, float]):
    with pytest.raises(InfeasibleRequest, match="this machine can never hold 2 workers"):
        fit(lambda: None, 2, resources=resources)


def test_custom_resources_limit_a_range_of_workers():
    shoal.init(resources={"license": 3})
    try:
        trainer = DataParallelTrainer(
            lambda: train.report({"size": train.get_context().get_world_size()}),
            scaling_config=ScalingConfig(num_workers=(1, 8), resources_per_worker={"license": 1, "CPU": 0.1}),
            run_config=RunConfig(verbose=0),
        )
        assert trainer.fit().metrics["size"] == 3
    finally:
        shoal.shutdown()


def test_a_name_that_is_taken_is_never_overwritten():
    first = fit(lambda: train.report({"a": 1}), name="taken")
    with pytest.raises(RunExists, match="there is a run named 'taken'"):
        fit(lambda: train.report({"a": 2}), name="taken")
    assert Result.from_path(first.path).metrics["a"] == 1


@pytest.mark.parametrize("name", ["a" * 300, "名" * 200, "quote ' and \n newline"])
def test_any_name_without_a_slash_will_do(name: str):
    result = fit(lambda: train.report({"name": train.get_context().get_experiment_name()}), 1, name=name)
    assert result.metrics["name"] == name
    assert len(os.fsencode(Path(result.path).name)) <= 255


def test_a_name_with_a_slash_is_refused():
    with pytest.raises(ValueError, match="has a slash"):
        RunConfig(name="a/b")


def test_a_place_that_cannot_be_written_to_is_said_before_anything_starts(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match=r"the run cannot be kept in .*: Not a directory|is a file"):
        fit(lambda: None, storage_path=tmp_path / "file" / "runs")
    with pytest.raises(StorageError, match="cannot be kept in /proc"):
        fit(lambda: None, storage_path="/proc/runs")
    with pytest.raises(ValueError, match="neither a path nor a URL"):
        RunConfig(storage_path="nonsense://bucket/runs")


def test_a_callback_is_told_everything_and_its_own_error_does_not_end_the_run(capsys: pytest.CaptureFixture[str]):
    class Listener(shoal.abc.Callback):
        heard: list[str] = []

        def on_run_start(self, name, path, **info):
            self.heard.append("start")

        def on_report(self, metrics):
            self.heard.append(f"report {metrics['x']}")
            raise ZeroDivisionError("mine")

        def on_run_end(self, state, reason):
            self.heard.append(state)

    listener = Listener()
    result = fit(lambda: train.report({"x": 1}), 1, callbacks=[listener], verbose=1)
    assert result.metrics["x"] == 1
    assert listener.heard == ["start", "report 1", "FINISHED"]
    assert "Listener.on_report raised ZeroDivisionError: mine; the run goes on" in capsys.readouterr().err
    with pytest.raises(TypeError, match=r"is neither a shoal\.abc\.Callback"):
        RunConfig(callbacks=[print])  # type: ignore[list-item]


def test_a_script_needs_no_guard_and_may_come_from_standard_input(tmp_path: Path):
    import subprocess

    source = """
from shoal import train
from shoal.train import DataParallelTrainer, ScalingConfig
class Model:
    def __init__(self, x): self.x = x
def train_func(config):
    train.report({"x": Model(config["x"]).x})
result = DataParallelTrainer(train_func, train_loop_config={"x": 3}, scaling_config=ScalingConfig(num_workers=2)).fit()
print("x is", result.metrics["x"])
"""
    assert "x is 3" in run_script(tmp_path, source)
    done = subprocess.run([sys.executable, "-"], input=source, capture_output=True, text=True, timeout=60, check=False)
    assert "x is 3" in done.stdout, done.stderr


def test_ranks_wait_for_each_other_and_share_what_rank_0_has():
    def train_func():
        seeds = [train.collective.broadcast_from_rank_zero({"seed": 10 * rank() + i}) for i in range(3)]
        time.sleep(0.1 * rank())
        reached = time.time()
        train.collective.barrier()
        train.report({"seeds": [s["seed"] for s in seeds], "waited": time.time() - reached})

    metrics = fit(train_func, 3).metrics
    assert metrics["seeds"] == [0, 1, 2]
    assert metrics["waited"] > 0.1


def test_nobody_waits_for_a_rank_that_has_finished():
    def train_func():
        if rank() == 0:
            train.collective.barrier()

    with pytest.raises(train.TrainingFailedError, match="rank 1 has finished and will never join"):
        fit(train_func)


def test_a_large_function_comes_once_to_each_host_also_for_the_next_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    sent: list[tuple[str, int]] = []
    send = Channel.send

    def watched(self: Channel, peer: Any, message: Any) -> None:
        size = len(getattr(message, "data", b"") or b"") + len(getattr(message, "task", b"") or b"")
        sent.append((type(message).__name__, size))
        send(self, peer, message)

    monkeypatch.setattr(Channel, "send", watched)
    ballast = os.urandom(2**20)
    mark = tmp_path / "mark"

    def train_func() -> int:
        if train.get_context().get_world_rank() == 1 and not mark.exists():
            mark.touch()
            os._exit(3)
        return len(ballast)

    result = train.DataParallelTrainer(
        train_func,
        scaling_config=train.ScalingConfig(num_workers=3),
        run_config=train.RunConfig(verbose=0, failure_config=train.FailureConfig(max_failures=1)),
    ).fit()
    assert result.return_value == 2**20
    large = [name for name, size in sent if size > 2**20]
    assert large == ["KeepTask", "KeepTask"]  # one for each attempt
    assert sum(size for name, size in sent if name == "Setup") == 0
