"""Runs and trials are told to trackers, whose own faults never end training."""

from __future__ import annotations

import http.server
import json
import os
import struct
import subprocess
import sys
import threading
import time
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import shoal
from shoal import train, tune
from shoal._runtime import tracking
from shoal.abc import Tracked, Tracker
from shoal.air.integrations.comet import CometLoggerCallback
from shoal.air.integrations.mlflow import MLflowLoggerCallback, setup_mlflow
from shoal.air.integrations.prometheus import PrometheusCallback, PrometheusTrialCallback
from shoal.air.integrations.wandb import WandbLoggerCallback, setup_wandb
from storage.servers import free_port

EXAMPLES = Path(__file__).parents[2] / "examples"
BLOCK, FULL, LAST = 32768, 1, 4  # of LevelDB's logs


def loop(config: dict[str, Any]) -> None:
    for step in range(config["steps"]):
        with train.checkpoint_dir() as directory:
            (directory / "model").write_text("weights")
            checkpoint = train.Checkpoint(directory) if train.get_context().get_world_rank() == 0 else None
            train.report({"loss": 1 / (step + 1), "eval": {"acc": 0.5}}, checkpoint=checkpoint)
        if step + 1 == config.get("fails_at"):
            raise ZeroDivisionError("by zero")


def fit(tracker: Any, tmp_path: Path, *, resume: Any = False, **config: Any) -> train.Result:
    return train.DataParallelTrainer(
        loop,
        train_loop_config={"steps": 3, "optimizer": {"lr": 0.1}, **config},
        run_config=train.RunConfig(
            name="digits", storage_path=tmp_path / "runs", callbacks=[tracker], verbose=1, resume=resume
        ),
    ).fit()


def search(tracker: Any, tmp_path: Path) -> tune.ResultGrid:
    return tune.Tuner(
        lambda config: {"loss": config["x"]},
        param_space={"x": tune.grid_search([1, 2])},
        run_config=tune.RunConfig(name="sweep", storage_path=tmp_path / "runs", callbacks=[tracker], verbose=1),
    ).fit()


def run_twofold(sends: Any, tmp_path: Path) -> None:
    train.DataParallelTrainer(
        sends,
        train_loop_config={"lr": 0.1},
        scaling_config=train.ScalingConfig(num_workers=2),
        run_config=train.RunConfig(name="mine", storage_path=tmp_path, verbose=0),
    ).fit()


class Ledger(Tracker):
    def __init__(self) -> None:
        self.lines: list[tuple[Any, ...]] = []
        self.keys: set[str] = set()

    def begin(self, run: Tracked) -> None:
        assert threading.current_thread() is not threading.main_thread()
        self.keys.add(run.key)
        self.lines.append(("begin", run.name, run.config.get("x")))

    def log(self, run: Tracked, step: int, metrics: Any) -> None:
        self.lines.append(("log", step, metrics.get("eval/acc")))

    def checkpoint(self, run: Tracked, step: int, path: str) -> None:
        self.lines.append(("checkpoint", step, Path(path).exists()))

    def end(self, run: Tracked, state: str, reason: str) -> None:
        self.lines.append(("end", state, reason))

    def close(self) -> None:
        self.lines.append(("close",))


def test_a_tracker_is_told_of_a_run_in_order_and_of_a_resumed_run_under_the_same_key(tmp_path: Path):
    ledger = Ledger()
    with pytest.raises(train.WorkerGroupError):
        fit(ledger, tmp_path, fails_at=2)
    assert ledger.lines[0] == ("begin", "digits", None)
    assert [line for line in ledger.lines if line[0] == "log"] == [("log", 1, 0.5), ("log", 2, 0.5)]
    assert ("checkpoint", 2, True) in ledger.lines
    assert ledger.lines[-2][:2] == ("end", "FAILED") and "ZeroDivisionError: by zero" in ledger.lines[-2][2]
    assert ledger.lines[-1] == ("close",)
    fit(ledger, tmp_path, resume=True)
    assert len(ledger.keys) == 1


def test_a_tracker_is_told_of_the_trials_of_a_search(tmp_path: Path):
    ledger = Ledger()
    search(ledger, tmp_path)
    assert sorted(line[2] for line in ledger.lines if line[0] == "begin") == [1, 2]
    assert [line[1] for line in ledger.lines if line[0] == "end"] == ["FINISHED"] * 2
    assert len(ledger.keys) == 2 and ledger.lines[-1] == ("close",)


def test_the_error_of_a_tracker_is_shown_once_for_each_method_and_training_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    class Broken(Tracker):
        def log(self, run: Tracked, step: int, metrics: Any) -> None:
            raise ConnectionError("no route to the server")

    assert fit(Broken(), tmp_path).metrics["loss"] == pytest.approx(1 / 3)
    shown = capsys.readouterr().err
    assert shown.count("Broken.log raised ConnectionError: no route to the server") == 1
    search(Broken(), tmp_path)
    assert "Broken.log raised ConnectionError: no route to the server" in capsys.readouterr().err


def test_a_tracker_that_could_not_begin_is_told_no_more_of_that_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    class Unreachable(Ledger):
        def begin(self, run: Tracked) -> None:
            raise ConnectionError("no route to the server")

    ledger = Unreachable()
    fit(ledger, tmp_path)
    assert ledger.lines == [("close",)]
    assert capsys.readouterr().err.count("Unreachable.") == 1


def test_a_tracker_that_does_not_answer_does_not_keep_a_run_from_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(tracking.Turns.__init__, "__defaults__", (0.2,))
    over = threading.Event()

    class Silent(Tracker):
        def log(self, run: Tracked, step: int, metrics: Any) -> None:
            over.wait(100)

    assert fit(Silent(), tmp_path).metrics
    over.set()
    assert "Silent has not sent everything 0.2 s after the end" in capsys.readouterr().err


def test_a_wait_for_a_tracker_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(tracking, "QUIET", 0.05)

    class Slow(Ledger):
        def end(self, run: Tracked, state: str, reason: str) -> None:
            time.sleep(0.3)
            super().end(run, state, reason)

    ledger = Slow()
    fit(ledger, tmp_path)
    assert ledger.lines[-1] == ("close",)
    said = capsys.readouterr().err
    assert said.count("waiting for Slow to send what is left, for at most 29.95 s") == 1
    assert "has not sent" not in said


def test_a_callback_is_told_of_attempts_and_of_the_root_cause_of_a_failure(tmp_path: Path):
    class Listener(shoal.abc.Callback):
        heard: list[Any] = []

        def on_attempt_start(self, attempt: int, world_size: int, **info: Any) -> None:
            self.heard.append(("start", attempt, world_size, info["checkpoint"]))

        def on_failure(self, attempt: int, cause: str, **info: Any) -> None:
            self.heard.append(("failure", attempt, cause.split(" raised ")[1], len(info["causes"])))

        def on_attempt_end(self, attempt: int, reason: str, **info: Any) -> None:
            self.heard.append(("end", attempt, info["reports"]))

    def fails_once(config: dict[str, Any]) -> None:
        if train.get_checkpoint() is None:
            loop({"steps": 2})
            train.collective.barrier()  # a rank without a checkpoint does not wait for the other one's
            raise ZeroDivisionError("by zero")

    train.DataParallelTrainer(
        fails_once,
        scaling_config=train.ScalingConfig(num_workers=2),
        run_config=train.RunConfig(
            storage_path=tmp_path,
            callbacks=[Listener()],
            verbose=0,
            failure_config=train.FailureConfig(max_failures=1),
        ),
        train_loop_config={},
    ).fit()
    assert Listener.heard == [
        ("start", 1, 2, 0),
        ("failure", 1, "ZeroDivisionError: by zero", 2),
        ("end", 1, 2),
        ("start", 2, 2, 2),
        ("end", 2, 2),
    ]


def test_mlflow_has_parameters_metrics_checkpoints_and_how_runs_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from mlflow.tracking import MlflowClient

    uri = f"sqlite:///{tmp_path}/mlflow.db"
    monkeypatch.chdir(tmp_path)

    def tracker() -> MLflowLoggerCallback:
        return MLflowLoggerCallback(uri, experiment_name="digits", tags={"team": "vision"}, save_artifact=True)

    with pytest.raises(train.WorkerGroupError):
        fit(tracker(), tmp_path, fails_at=2)
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("digits").experiment_id
    (run,) = client.search_runs([experiment])
    assert run.info.status == "FAILED" and "ZeroDivisionError" in run.data.tags["shoal.reason"]
    assert run.data.tags["team"] == "vision" and run.info.run_name == "digits"
    assert run.data.params["optimizer/lr"] == "0.1"
    assert run.data.metrics["eval/acc"] == 0.5
    assert [m.step for m in client.get_metric_history(run.info.run_id, "loss")] == [1, 2]
    assert [file.path for file in client.list_artifacts(run.info.run_id)] == ["checkpoint_000001", "checkpoint_000002"]
    fit(tracker(), tmp_path, resume=True)
    (again,) = client.search_runs([experiment])  # the same run, gone on with
    assert again.info.run_id == run.info.run_id and again.info.status == "FINISHED"
    search(MLflowLoggerCallback(uri, experiment_name="sweep"), tmp_path)
    trials = client.search_runs([client.get_experiment_by_name("sweep").experiment_id])
    assert sorted(trial.data.params["x"] for trial in trials) == ["1", "2"]
    assert {trial.info.status for trial in trials} == {"FINISHED"}


def test_setup_mlflow_gives_the_module_to_the_first_rank_alone(tmp_path: Path):
    uri = f"sqlite:///{tmp_path}/mlflow.db"

    def sends(config: dict[str, Any]) -> None:
        mlflow = setup_mlflow(config, uri, experiment_name="mine", create_experiment_if_not_exists=True)
        mlflow.log_metric("from", train.get_context().get_world_rank())
        mlflow.end_run()
        train.report({"loss": 1})

    run_twofold(sends, tmp_path)
    from mlflow.tracking import MlflowClient

    client = MlflowClient(uri)
    (run,) = client.search_runs([client.get_experiment_by_name("mine").experiment_id])
    assert run.data.metrics == {"from": 0.0} and run.data.params == {"lr": "0.1"} and run.info.run_name == "mine"
    with pytest.raises(ValueError, match="has no experiment 'other'"):
        setup_mlflow(tracking_uri=uri, experiment_name="other")


def records(directory: Path) -> list[Any]:
    """Return what was written for Weights & Biases: protocol buffers in a log of LevelDB's format, after 7 bytes."""
    from wandb.proto import wandb_internal_pb2

    found = []
    for file in sorted(directory.glob("wandb/offline-run-*/run-*.wandb")):
        data, at, whole = file.read_bytes(), 7, b""
        while at + 7 <= len(data):
            if BLOCK - at % BLOCK < 7:  # what is left of a block is too small for a header
                at += BLOCK - at % BLOCK
                continue
            size, kind = struct.unpack("<HB", data[at + 4 : at + 7])
            whole += data[at + 7 : at + 7 + size]
            at += 7 + size
            if kind in (FULL, LAST):
                record = wandb_internal_pb2.Record()
                record.ParseFromString(whole)
                found.append(record)
                whole = b""
    return found


@pytest.fixture
def wandb_service() -> Iterator[None]:
    yield
    import wandb

    wandb.teardown()


@pytest.mark.usefixtures("wandb_service")
def test_weights_and_biases_has_configuration_and_metrics_offline(tmp_path: Path):
    with pytest.raises(train.WorkerGroupError):
        fit(
            WandbLoggerCallback("digits", mode="offline", dir=str(tmp_path), excludes=["eval/acc"]),
            tmp_path,
            fails_at=2,
        )
    written = records(tmp_path)
    (run,) = [record.run for record in written if record.HasField("run")][:1]
    assert (run.project, run.display_name) == ("digits", "digits")
    assert {item.key: json.loads(item.value_json) for item in run.config.update}["optimizer"] == {"lr": 0.1}
    rows = [
        {item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
        for record in written
        if record.HasField("history")
    ]
    assert [(row["training_iteration"], row["loss"]) for row in rows] == [(1, 1.0), (2, 0.5)]
    assert "eval/acc" not in rows[0]
    assert [record.exit.exit_code for record in written if record.HasField("exit")] == [1]
    search(WandbLoggerCallback("sweep", mode="offline", dir=str(tmp_path / "sweep")), tmp_path)
    runs = [record.run for record in records(tmp_path / "sweep") if record.HasField("run")]
    assert len({run.run_id for run in runs}) == 2 and len({run.run_group for run in runs}) == 1


@pytest.mark.usefixtures("wandb_service")
def test_setup_wandb_names_the_run_after_the_worker(tmp_path: Path):
    def sends(config: dict[str, Any]) -> None:
        with setup_wandb(config, mode="offline", dir=str(tmp_path)) as run:
            run.log({"from": train.get_context().get_world_rank()})
        train.report({"loss": 1})

    run_twofold(sends, tmp_path)
    runs = [record.run for record in records(tmp_path) if record.HasField("run")]
    assert {run.display_name for run in runs} == {"mine-0"}
    with pytest.raises(ValueError, match="both given"):
        setup_wandb(api_key="a", api_key_file="b")


def test_comet_has_parameters_and_metrics_offline(tmp_path: Path):
    tracker = CometLoggerCallback(online=False, offline_directory=str(tmp_path), tags=["vision"], project_name="digits")
    with pytest.raises(train.WorkerGroupError):
        fit(tracker, tmp_path, fails_at=2)
    (archive,) = tmp_path.glob("*.zip")
    with zipfile.ZipFile(archive) as opened:
        said = opened.read("messages.json").decode()
    for what in ("loss", "optimizer/lr", "digits", "ZeroDivisionError", "vision"):
        assert what in said, what


def test_what_is_missing_is_said_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch):
    for module, make in (
        ("mlflow", MLflowLoggerCallback),
        ("wandb", WandbLoggerCallback),
        ("comet_ml", CometLoggerCallback),
    ):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(ImportError, match=r"pip install 'shoal\["):
            make()


def test_prometheus_is_served_how_a_run_and_a_search_are_doing(tmp_path: Path):
    from prometheus_client import CollectorRegistry

    registry = CollectorRegistry()
    callback = PrometheusCallback(port=0, registry=registry)
    with pytest.raises(train.WorkerGroupError):
        fit(callback, tmp_path, fails_at=2)
    served = urllib.request.urlopen(f"http://127.0.0.1:{callback.port}/metrics").read().decode()
    for line in (
        'shoal_reports_total{run="digits"} 2.0',
        'shoal_checkpoints_total{run="digits"} 2.0',
        'shoal_attempts_total{run="digits"} 1.0',
        'shoal_failures_total{run="digits"} 1.0',
        'shoal_world_size{run="digits"} 1.0',
        'shoal_run_state{run="digits",state="FAILED"} 1.0',
        'shoal_run_state{run="digits",state="RUNNING"} 0.0',
    ):
        assert line in served, served
    other = PrometheusCallback(port=free_port(), registry=registry)  # the same metrics at a second port
    assert urllib.request.urlopen(f"http://127.0.0.1:{other.port}/metrics").read().decode() == served
    trials = PrometheusTrialCallback(port=0, registry=CollectorRegistry())
    search(trials, tmp_path)
    served = urllib.request.urlopen(f"http://127.0.0.1:{trials.port}/metrics").read().decode()
    assert 'status="TERMINATED"} 2.0' in served and 'status="RUNNING"} 0.0' in served


def test_the_example_tells_a_webhook_of_failures_and_the_end(tmp_path: Path):
    told: list[str] = []

    class Hook(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            told.append(json.loads(self.rfile.read(int(self.headers["Content-Length"])))["text"])
            self.send_response(200)
            self.end_headers()

        def log_message(self, *arguments: Any) -> None:
            """Say nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hook) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        subprocess.run(
            [sys.executable, EXAMPLES / "notify.py", f"http://127.0.0.1:{server.server_port}/hook"],
            env={**os.environ, "SHOAL_STORAGE_PATH": str(tmp_path)},
            check=True,
            timeout=100,
        )
        server.shutdown()
    assert len(told) == 2
    assert "attempt 1 failed: rank 0" in told[0] and "raised OSError: the disk is full" in told[0]
    assert told[1].endswith("FINISHED")
