"""What callbacks of a search are told, what their errors do, and what TensorBoard finds."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shoal import train, tune
from shoal.abc import Callback
from shoal.train import Checkpoint, DataParallelTrainer, FailureConfig, RunConfig
from shoal.tune.logger import LoggerCallback, TBXLoggerCallback, pretty_print


def search(function: Any, space: dict[str, Any], concurrent: int | None = None, **run: Any) -> tune.ResultGrid:
    config = tune.TuneConfig(metric="loss", mode="min", max_concurrent_trials=concurrent)
    return tune.Tuner(
        function, param_space=space, tune_config=config, run_config=RunConfig(**{"verbose": 0, **run})
    ).fit()


class Diary(tune.Callback):
    """Keeps what it is told, in order."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []
        self.steps = 0

    def setup(self, stop=None, num_samples=None, total_num_samples=None, **info):
        self.told.append(("setup", stop, num_samples, total_num_samples))

    def on_step_end(self, iteration, trials, **info):
        assert iteration == self.steps + 1
        self.steps = iteration

    def on_trial_start(self, iteration, trials, trial, **info):
        assert trial in trials
        self.told.append(("start", trial.config["x"]))

    def on_trial_recover(self, iteration, trials, trial, **info):
        self.told.append(("recover", trial.config["x"]))

    def on_trial_result(self, iteration, trials, trial, result, **info):
        self.told.append(("result", trial.config["x"], result["training_iteration"]))

    def on_checkpoint(self, iteration, trials, trial, checkpoint, **info):
        with checkpoint.as_directory() as directory:
            self.told.append(("checkpoint", trial.config["x"], Path(directory, "step").read_text()))

    def on_trial_complete(self, iteration, trials, trial, **info):
        self.told.append(("complete", trial.config["x"]))

    def on_trial_error(self, iteration, trials, trial, **info):
        self.told.append(("error", trial.config["x"], trial.error))

    def on_experiment_end(self, trials, **info):
        self.told.append(("end", len(trials)))


def two_steps(config: dict[str, Any]) -> None:
    start = 0
    if checkpoint := tune.get_checkpoint():
        with checkpoint.as_directory() as directory:
            start = int(Path(directory, "step").read_text())
    for step in range(start + 1, 3):
        with train.checkpoint_dir() as directory:
            Path(directory, "step").write_text(str(step))
            tune.report({"loss": config["x"] / step}, checkpoint=Checkpoint(directory))
        if config["x"] == 2 and start == 0:
            os._exit(3)
    if config["x"] == 3:
        raise ValueError("three is too much")


def test_callbacks_are_told_what_happens_in_order():
    diary = Diary()
    grid = search(
        two_steps,
        {"x": tune.grid_search([1, 2, 3])},
        concurrent=1,
        callbacks=[diary],
        failure_config=FailureConfig(max_failures=1),
        stop={"training_iteration": 10},
    )
    assert grid.num_errors == 1
    assert diary.told[0] == ("setup", {"training_iteration": 10}, 1, 3)
    one, two, three = ([line for line in diary.told[1:-1] if line[1] == x] for x in (1, 2, 3))
    checkpoints = [("checkpoint", 1, "1"), ("checkpoint", 1, "2")]
    assert [line for line in one if line not in checkpoints] == [
        ("start", 1),
        ("result", 1, 1),
        ("result", 1, 2),
        ("complete", 1),
    ]
    assert [line for line in one if line in checkpoints] == checkpoints
    assert two.index(("recover", 2)) > two.index(("result", 2, 1))
    assert two.index(("recover", 2)) < two.index(("result", 2, 2))
    assert two[-1] == ("complete", 2)
    assert [line for line in three if line[0] == "recover"] == [("recover", 3)]
    assert three[-1][0] == "error"
    assert "three is too much" in three[-1][2]
    assert diary.told[-1] == ("end", 3)
    assert diary.steps > 10


def test_what_a_callback_raises_is_said_once_and_harms_nothing(capfd: pytest.CaptureFixture[str]):
    class Broken(tune.Callback):
        def on_trial_result(self, iteration, trials, trial, result, **info):
            raise RuntimeError("my mistake")

    grid = search(two_steps, {"x": tune.grid_search([0, 1])}, callbacks=[Broken()], verbose=1)
    assert grid.num_terminated == 2
    assert capfd.readouterr().err.count("Broken.on_trial_result raised RuntimeError: my mistake; the search goes") == 1


class Counting(tune.Callback):
    def __init__(self, step: int = 1):
        self.step, self.count = step, 0

    def on_trial_result(self, iteration, trials, trial, result, **info):
        self.count += self.step

    def get_state(self):
        return {"count": self.count}

    def set_state(self, state):
        self.count = state["count"]


def test_what_a_callback_remembers_is_given_back_in_a_restored_search():
    callbacks = [(Counting(), Counting(10)) for _ in range(2)]
    for pair, resume in zip(callbacks, (False, True), strict=True):
        search(two_steps, {"x": tune.grid_search([0, 1])}, callbacks=list(pair), name="counted", resume=resume)
    assert [(one.count, other.count) for one, other in callbacks] == [(4, 40), (4, 40)]


def test_a_callback_that_would_be_told_nothing_is_refused():
    class OfARun(Callback):
        pass

    with pytest.raises(TypeError, match=r"told nothing here; a search tells of its trials.*shoal\.tune\.Callback"):
        tune.Tuner(two_steps, run_config=RunConfig(callbacks=[OfARun()]))
    with pytest.raises(TypeError, match=r"told nothing here; a run has no trials.*shoal\.abc\.Callback"):
        DataParallelTrainer(lambda: None, run_config=RunConfig(callbacks=[Diary()])).fit()
    with pytest.raises(TypeError, match="give an instance of a subclass"):
        RunConfig(callbacks=[Diary])  # type: ignore[list-item]


def test_a_logger_has_the_directory_of_each_trial():
    class Lines(LoggerCallback):
        def log_trial_result(self, iteration, trial, result):
            with open(Path(trial.local_path, "lines"), "a") as file:
                file.write(f"{result['loss']}\n")

        def log_trial_end(self, trial, failed=False):
            Path(trial.local_path, "over").write_text(str(failed))

    grid = search(two_steps, {"x": tune.grid_search([0, 3])}, callbacks=[Lines()])
    assert [Path(result.path, "lines").read_text() for result in grid] == ["0.0\n0.0\n", "3.0\n1.5\n"]
    assert [Path(result.path, "over").read_text() for result in grid] == ["False", "True"]


def test_tensorboard_finds_the_numbers_and_the_parameters():
    def function(config):
        for step in range(3):
            tune.report({"loss": config["x"] * step, "nested": {"acc": 0.5}, "name": "text", "bad": float("inf")})

    space = {"x": tune.grid_search([2.0]), "deep": {"kind": "adam"}, "layers": [1, 2]}
    grid = search(function, space, callbacks=[TBXLoggerCallback()])
    (file,) = Path(grid[0].path, "tensorboard").iterdir()
    losses, parameters = {}, {}
    for event in events(file):
        for value in event.summary.value:
            if value.tag == "loss":
                losses[event.step] = value.simple_value
            if value.tag == "_hparams_/session_start_info":
                parameters = hyperparameters(value)
            assert value.tag != "bad"
    assert losses == {1: 0.0, 2: 2.0, 3: 4.0}
    assert parameters["x"] == 2.0
    assert parameters["deep/kind"] == "adam"


def events(file: Path) -> Iterator[Any]:
    """Yield the events of a file: each a length, a checksum of it, the event, and a checksum."""
    from tensorboardX.proto.event_pb2 import Event

    data = file.read_bytes()
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        yield Event.FromString(data[12 : 12 + length])
        data = data[12 + length + 4 :]


def hyperparameters(value: Any) -> dict[str, Any]:
    from tensorboardX.proto.plugin_hparams_pb2 import HParamsPluginData

    plugin = HParamsPluginData.FromString(value.metadata.plugin_data.content)
    return {name: getattr(given, given.WhichOneof("kind")) for name, given in plugin.session_start_info.hparams.items()}


def test_a_result_as_text():
    assert pretty_print({"a": 1, "b": {"c": 2, "d": 3}}, exclude=["d"]) == "a: 1\nb:\n  c: 2"
