"""Searches with real processes: what trials may be, what becomes of them, and what a person is told."""

from __future__ import annotations

import csv
import json
import os
import re
import textwrap
import time
from pathlib import Path

import pytest
from searching import directories, search, tuner

from shoal import train, tune
from shoal.tune import FailureConfig, ResultGrid, Trainable, TuneError, Tuner
from shoal.tune.schedulers import (
    ASHAScheduler,
    HyperBandScheduler,
    PopulationBasedTraining,
    PopulationBasedTrainingReplay,
    ResourceChangingScheduler,
)


def steps(config):
    for step in range(config.get("steps", 3)):
        tune.report({"score": config["a"] * (step + 1)})


@pytest.mark.parametrize("reuse", [False, True])
def test_every_configuration_is_tried_and_the_best_is_found(reuse):
    grid = search(steps, {"a": tune.grid_search([3, 1, 2]), "b": tune.choice(["x"])}, reuse_workers=reuse)
    assert [result.config for result in grid] == [{"a": 3, "b": "x"}, {"a": 1, "b": "x"}, {"a": 2, "b": "x"}]
    assert [result.metrics["score"] for result in grid] == [9, 3, 6]
    assert grid.get_best_result().config["a"] == 3
    assert (len(grid), grid.num_errors, grid.num_terminated, grid.errors) == (3, 0, 3, [])


def test_trials_have_a_process_each_unless_processes_are_used_again():
    def pids(config):
        tune.report({"score": 1, "pid": os.getpid()})

    fresh = search(pids, num_samples=4)
    assert len({result.metrics["pid"] for result in fresh}) == 4
    again = search(pids, num_samples=6, reuse_workers=True, max_concurrent_trials=1)
    assert len({result.metrics["pid"] for result in again}) == 1


def test_a_process_whose_trial_failed_is_not_used_again():
    def fails_once(config):
        if config["a"] == 1:
            raise ValueError("bad")
        tune.report({"score": config["a"], "pid": os.getpid()})

    grid = search(fails_once, {"a": tune.grid_search([0, 1, 2, 3])}, reuse_workers=True, max_concurrent_trials=1)
    pids = [grid[number].metrics["pid"] for number in (0, 2, 3)]
    assert pids[0] != pids[1] == pids[2]
    assert grid.num_errors == 1


def test_a_process_that_dies_between_trials_is_not_missed():
    def dies_later(config):
        import threading

        if config["a"] == 0:
            threading.Timer(0.1, os._exit, [3]).start()
        tune.report({"score": config["a"]})
        time.sleep(0.3 if config["a"] == 2 else 0)

    grid = search(
        dies_later,
        {"a": tune.grid_search([0, 1, 2, 3])},
        reuse_workers=True,
        max_concurrent_trials=1,
        run={"failure_config": FailureConfig(max_failures=1)},
    )
    assert grid.num_terminated == 4


@pytest.mark.parametrize(
    ("value", "metrics"),
    [({"score": 2.0}, {"score": 2.0}), (3, {"score": 3}), (None, {})],
    ids=["dict", "number", "none"],
)
def test_what_a_function_returns_is_its_last_report(value, metrics):
    grid = search(lambda config: value)
    reported = {key: inner for key, inner in grid[0].metrics.items() if key == "score"}
    assert reported == metrics


def test_a_function_that_returns_something_else_fails_its_trial_with_a_clear_error():
    grid = search(lambda config: "oops")
    assert "returned a str; a trial returns a dict of metrics, one number, or nothing" in str(grid.errors[0])


def test_a_function_without_arguments_can_be_searched():
    assert search(lambda: {"score": 1}, {}, num_samples=2).num_terminated == 2


def test_a_failed_trial_is_told_of_with_its_cause_and_does_not_end_the_search():
    def fails(config):
        tune.report({"score": config["a"]})
        if config["a"] == 1:
            raise ValueError("the second one is bad")

    grid = search(fails, {"a": tune.grid_search([0, 1, 2])})
    assert (grid.num_errors, grid.num_terminated) == (1, 2)
    assert isinstance(grid.errors[0].__cause__, ValueError)
    assert "the second one is bad" in (Path(grid[1].path) / "error.txt").read_text()
    assert grid[1].error is not None
    assert grid.get_best_result().config == {"a": 2}


def test_fail_fast_ends_the_search_and_can_raise():
    def fails(config):
        raise ValueError("bad")

    grid = search(fails, num_samples=5, max_concurrent_trials=1, run={"failure_config": FailureConfig(fail_fast=True)})
    assert len(grid) == 1
    with pytest.raises(train.TrainingFailedError, match="bad"):
        search(fails, num_samples=5, run={"failure_config": FailureConfig(fail_fast="raise")})


def test_max_failures_counts_for_each_trial(tmp_path):
    def fails_once(config):
        marker = tmp_path / str(config["a"])
        if not marker.exists():
            marker.touch()
            raise ValueError("the first time")
        tune.report({"score": 1})

    grid = search(fails_once, {"a": tune.grid_search([1, 2])}, run={"failure_config": FailureConfig(max_failures=1)})
    assert grid.num_errors == 0
    assert [len(result.attempts) for result in grid] == [2, 2]


def test_a_stopped_trial_does_not_run_on(tmp_path):
    def leaves_traces(config):
        for step in range(20):
            (tmp_path / f"{config['a']}-{step}").touch()
            tune.report({"score": config["a"]})

    scheduler = ASHAScheduler(grace_period=1, reduction_factor=2, max_t=20)
    grid = search(leaves_traces, {"a": tune.grid_search([2, 1, 0])}, scheduler=scheduler, max_concurrent_trials=1)
    assert [result.metrics["training_iteration"] for result in grid] == [20, 1, 1]
    assert len(list(tmp_path.glob("1-*"))) == 1  # it has left at its report, and done nothing after it


def test_stop_ends_trials():
    grid = search(steps, {"a": 1, "steps": 50}, run={"stop": {"training_iteration": 4}})
    assert grid[0].metrics["training_iteration"] == 4
    grid = search(steps, {"a": 1, "steps": 50}, run={"stop": lambda trial_id, result: result["score"] >= 7})
    assert grid[0].metrics["score"] == 7


def test_the_time_budget_ends_a_search_without_an_end():
    def slow(config):
        while True:
            tune.report({"score": 1})
            time.sleep(0.01)

    began = time.monotonic()
    grid = search(slow, num_samples=-1, time_budget_s=1.0)
    assert time.monotonic() - began < 30
    assert grid.num_terminated == len(grid) >= 1


def test_the_same_seed_gives_the_same_configurations():
    def configs(**settings):
        return [result.config for result in search(steps, num_samples=3, **settings)]

    assert configs(seed=1) == configs(seed=1)
    assert configs() != configs()


# ---- trainers -------------------------------------------------------------------------------------------------------


def test_a_trainer_is_searched_with_flat_parameters_and_the_metric_given_to_the_scheduler_alone():
    def train_func(config):
        rank = train.get_context().get_world_rank()
        for epoch in range(4):
            train.report({"loss": config["lr"] * config["scale"] + rank, "epoch": epoch})

    trainer = train.DataParallelTrainer(
        train_func, train_loop_config={"scale": 10}, scaling_config=train.ScalingConfig(num_workers=2)
    )
    grid = Tuner(
        trainer,
        param_space={"lr": tune.grid_search([0.3, 0.1])},
        tune_config=tune.TuneConfig(scheduler=ASHAScheduler(metric="loss", mode="min")),
        run_config=tune.RunConfig(verbose=0),
    ).fit()
    best = grid.get_best_result()
    assert best.config["lr"] == 0.1
    assert best.config["scale"] == 10
    assert best.metrics["loss"] == 1.0


def test_parameters_of_a_trainer_may_stand_under_train_loop_config():
    def train_func(config):
        train.report({"loss": config["lr"] + config["fixed"]})

    trainer = train.DataParallelTrainer(train_func, train_loop_config={"fixed": 1})
    grid = search(trainer, {"train_loop_config": {"lr": tune.grid_search([1, 2])}}, metric="loss", mode="min")
    assert grid.get_best_result().config["train_loop_config"] == {"lr": 1, "fixed": 1}
    assert grid.get_best_result().metrics["loss"] == 2


def test_a_group_that_is_stopped_by_the_scheduler_ends_at_one_report():
    def train_func(config):
        for _ in range(50):
            train.collective.barrier()
            train.report({"score": config["a"]})

    trainer = train.DataParallelTrainer(train_func, scaling_config=train.ScalingConfig(num_workers=2))
    began = time.monotonic()
    grid = search(
        trainer,
        {"a": tune.grid_search([2, 1, 0])},
        scheduler=ASHAScheduler(grace_period=1, reduction_factor=2, max_t=50),
        max_concurrent_trials=1,
    )
    assert [result.metrics["training_iteration"] for result in grid] == [50, 1, 1]
    assert time.monotonic() - began < 30


# ---- classes --------------------------------------------------------------------------------------------------------


class Counter(Trainable):
    def setup(self, config):
        self.count, self.resets = 0, 0

    def step(self):
        self.count += 1
        return {
            "score": self.count * self.config["a"],
            "done": self.count == self.config.get("length"),
            "n": self.count,
        }

    def save_checkpoint(self, checkpoint_dir):
        Path(checkpoint_dir, "count").write_text(str(self.count))

    def load_checkpoint(self, checkpoint):
        self.count = int(Path(checkpoint, "count").read_text())


def test_a_class_steps_until_it_is_done_and_saves_at_the_end():
    grid = search(Counter, {"a": 2, "length": 3})
    assert grid[0].metrics["score"] == 6
    with grid[0].checkpoint.as_directory() as directory:
        assert Path(directory, "count").read_text() == "3"


def test_a_class_that_is_stopped_saves_where_it_stops():
    grid = search(Counter, {"a": 2}, run={"stop": {"training_iteration": 5}})
    with grid[0].checkpoint.as_directory() as directory:
        assert Path(directory, "count").read_text() == "5"
    assert grid[0].metrics["training_iteration"] == 5


def test_a_class_goes_on_from_its_checkpoint_after_a_failure(tmp_path):
    class Fails(Counter):
        def step(self):
            if self.count == 3 and not (tmp_path / "failed").exists():
                (tmp_path / "failed").touch()
                raise ValueError("once")
            return super().step()

    run = {
        "failure_config": FailureConfig(max_failures=1),
        "checkpoint_config": tune.CheckpointConfig(checkpoint_frequency=2),
    }
    grid = search(Fails, {"a": 1, "length": 5}, run=run)
    assert grid[0].metrics["n"] == 5
    assert grid[0].attempts[1].checkpoint == 2


def test_a_class_that_can_takes_the_next_configuration():
    class Resets(Counter):
        def reset_config(self, new_config):
            self.resets += 1
            self.count = 0
            return True

        def step(self):
            return {**super().step(), "resets": self.resets}

    grid = search(Resets, {"a": tune.grid_search([1, 2, 3]), "length": 2}, reuse_workers=True, max_concurrent_trials=1)
    assert [result.metrics["resets"] for result in grid] == [0, 1, 2]
    assert [result.metrics["score"] for result in grid] == [2, 4, 6]


def pbt(**settings):
    return PopulationBasedTraining(
        time_attr="training_iteration",
        perturbation_interval=3,
        hyperparam_mutations={"a": tune.uniform(0, 1)},
        seed=1,
        **settings,
    )


@pytest.mark.parametrize("synch", [False, True])
def test_population_based_training_goes_on_from_the_better_ones(synch):
    scheduler = pbt(synch=synch)
    grid = search(
        Counter,
        scheduler=scheduler,
        num_samples=4,
        seed=1,
        run={"stop": {"training_iteration": 12}, "checkpoint_config": tune.CheckpointConfig(num_to_keep=1)},
    )
    assert grid.num_terminated == 4
    assert [result.metrics["training_iteration"] for result in grid] == [12] * 4
    assert scheduler.lineage
    counts = [result.metrics["n"] for result in grid]  # the count of steps goes over with the checkpoint
    if synch:
        assert counts == [12] * 4
    else:
        assert min(counts) >= 6, counts


def test_a_checkpoint_that_another_trial_goes_on_from_is_not_deleted_under_it():
    def counts(config):
        count = 0
        checkpoint = tune.get_checkpoint()
        if checkpoint:
            time.sleep(0.2)  # the one that it belongs to has stored newer ones by now
            with checkpoint.as_directory() as directory:
                count = int(Path(directory, "count").read_text())
        while count < 30:
            count += 1
            with train.checkpoint_dir() as directory:
                (directory / "count").write_text(str(count))
                tune.report({"score": config["a"], "count": count}, checkpoint=train.Checkpoint(directory))

    scheduler = pbt()
    grid = search(
        counts,
        scheduler=scheduler,
        num_samples=2,
        seed=1,
        run={"checkpoint_config": tune.CheckpointConfig(num_to_keep=1)},
    )
    assert grid.num_errors == 0
    assert scheduler.lineage
    for result in grid:
        kept = [path for path in (Path(result.path) / "checkpoints").iterdir() if not path.name.startswith(".")]
        assert len(kept) <= 2  # what was kept for another trial is gone when that does not need it any more


# ---- what trials take -----------------------------------------------------------------------------------------------


def test_trials_share_the_machine_by_what_they_take(tmp_path):
    def counts_others(config):
        marker = tmp_path / f"running-{os.getpid()}"
        marker.touch()
        time.sleep(0.15)
        tune.report({"score": len(list(tmp_path.glob("running-*")))})
        marker.unlink()

    cpus = len(os.sched_getaffinity(0))
    grid = search(tune.with_resources(counts_others, {"cpu": cpus}), num_samples=3)
    assert {result.metrics["score"] for result in grid} == {1}
    grid = search(tune.with_resources(counts_others, lambda config: {"cpu": cpus / 2}), num_samples=4)
    assert max(result.metrics["score"] for result in grid) == 2


def test_a_lone_trial_may_share_cpus_that_nobody_asked_for():
    def train_func(config):
        train.report({"score": train.get_context().get_world_size()})

    many = 2 * len(os.sched_getaffinity(0))
    trainer = train.DataParallelTrainer(train_func, scaling_config=train.ScalingConfig(num_workers=many))
    assert [result.metrics["score"] for result in search(trainer, num_samples=2)] == [many, many]


def test_more_than_there_ever_is_fails_the_trial_with_the_reason():
    grid = search(tune.with_resources(steps, {"cpu": 10_000}))
    assert "CPU: 10000 asked" in str(grid.errors[0])


def test_what_trials_share_is_stored_once(tmp_path):
    class Data:
        def __init__(self):
            self.values = list(range(100_000))

        def __reduce__(self):
            with open(tmp_path / "pickled", "a") as file:
                file.write("x")
            return list, (self.values,)

    def uses(config, data):
        tune.report({"score": len(data)})

    grid = search(tune.with_parameters(uses, data=Data()), num_samples=3)
    assert [result.metrics["score"] for result in grid] == [100_000] * 3
    assert (tmp_path / "pickled").read_text() == "x"
    assert all((directory / "params.json").stat().st_size < 1000 for directory in directories(grid))


def test_a_class_gets_what_trials_share_in_its_setup():
    class Uses(Counter):
        def setup(self, config, data=None):
            super().setup(config)
            self.data = data

        def step(self):
            return {**super().step(), "data": self.data}

    grid = search(tune.with_parameters(Uses, data=[1, 2]), {"a": 1, "length": 1})
    assert grid[0].metrics["data"] == [1, 2]


# ---- configurations -------------------------------------------------------------------------------------------------


def test_configurations_may_hold_functions_and_objects():
    def calls(config):
        tune.report({"score": config["function"](2), "inner": config["nested"]["list"][1]})

    grid = search(calls, {"function": tune.choice([lambda x: x + 1]), "nested": {"list": [0, tune.choice([5])]}})
    assert (grid[0].metrics["score"], grid[0].metrics["inner"]) == (3, 5)
    assert callable(grid[0].config["function"])


def test_a_configuration_that_cannot_be_sent_fails_its_trial_and_names_the_parameter():
    import threading

    grid = search(steps, {"a": 1, "lock": threading.Lock()})
    assert "lock" in str(grid.errors[0])
    assert "cannot be sent to the workers" in str(grid.errors[0])


def test_conditional_and_computed_parameters_are_sampled():  # C8
    space = {
        "a": tune.choice([1.0, 2.0]),
        "layers": tune.sample_from(lambda config: [tune.choice([8]) for _ in range(3)]),
        "optimizer": tune.choice([{"name": "sgd", "momentum": tune.uniform(0, 1)}]),
        "double": tune.sample_from(lambda spec: spec.config.a * 2),
    }
    grid = search(steps, space, num_samples=2)
    for result in grid:
        assert result.config["layers"] == [8, 8, 8]
        assert 0 <= result.config["optimizer"]["momentum"] <= 1
        assert result.config["double"] == 2 * result.config["a"]


# ---- what is kept ---------------------------------------------------------------------------------------------------


def test_directories_are_named_after_what_varies_and_hold_what_was_reported():
    grid = search(steps, {"a": tune.grid_search([1, 2]), "fixed": "x", "steps": 2}, run={"name": "mine"})
    assert [path.name for path in directories(grid)] == ["00000_a=1", "00001_a=2"]
    first = directories(grid)[0]
    assert json.loads((first / "params.json").read_text()) == {"a": 1, "fixed": "x", "steps": 2}
    with open(first / "progress.csv") as file:
        assert [row["score"] for row in csv.DictReader(file)] == ["1", "2"]
    assert Path(grid.experiment_path).name == "mine"


def test_names_are_bounded_whatever_the_parameters_are():
    space = {"a": 1, **{f"parameter/{'x' * 50}/{number}": tune.choice(["y" * 100]) for number in range(9)}}
    grid = search(steps, space)
    assert all(len(os.fsencode(path.name)) <= 120 for path in directories(grid))


def test_what_trials_print_is_in_their_own_logs_also_where_they_share_a_process():
    def prints(config):
        print(f"this is {config['a']}")
        os.system(f"echo from a child {config['a']}")
        tune.report({"score": 1})

    for reuse in (False, True):
        grid = search(prints, {"a": tune.grid_search([1, 2, 3])}, reuse_workers=reuse, max_concurrent_trials=1)
        for number, directory in enumerate(directories(grid), start=1):
            log = (directory / "logs" / "worker_0.log").read_text()
            assert sorted(log.splitlines()) == [f"from a child {number}", f"this is {number}"]


def test_results_as_a_frame_have_a_row_a_trial():
    frame = search(steps, {"a": tune.grid_search([1, 2])}).get_dataframe()
    assert list(frame["config/a"]) == [1, 2]
    assert list(frame["score"]) == [3, 6]


# ---- the best -------------------------------------------------------------------------------------------------------


def test_nan_and_infinity_never_win_and_scopes_count_what_they_say():
    def reports(config):
        for value in config["values"]:
            tune.report({"score": value})

    nan, inf = float("nan"), float("inf")
    values = [[1.0, 9.0, 2.0], [nan, nan, nan], [inf, inf, inf], [3.0, 3.0, 3.0]]
    grid = search(reports, {"values": tune.grid_search(values)})
    assert grid.get_best_result().config["values"] == [3.0, 3.0, 3.0]
    assert grid.get_best_result(scope="all").config["values"] == [1.0, 9.0, 2.0]
    assert grid.get_best_result(scope="avg").config["values"] == [1.0, 9.0, 2.0]
    assert grid.get_best_result(filter_nan_and_inf=False).config["values"] == [inf] * 3
    assert grid.get_best_result(mode="min").config["values"] == [1.0, 9.0, 2.0]
    with pytest.raises(RuntimeError, match=r"no trial has a number as 'loss'.*score"):
        grid.get_best_result(metric="loss")
    with pytest.raises(ValueError, match="scope='some'"):
        grid.get_best_result(scope="some")


def test_without_a_metric_it_is_asked_for():
    grid = search(steps, {"a": 1}, metric=None, mode=None)
    with pytest.raises(ValueError, match="which metric"):
        grid.get_best_result()
    assert grid.get_best_result("score", "max").config["a"] == 1


# ---- mistakes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: tuner(steps, mode="maximum"), "mode='maximum': choose 'max' or 'min'"),
        (lambda: tuner(steps, {"a": tune.choice([])}), "nothing to choose from"),
        (lambda: tuner(steps, {"a": {"b": {"grid_search": []}}}), "param_space['a/b']"),
        (lambda: tuner(steps, num_samples=0), "num_samples=0 makes no trial"),
        (lambda: tuner(steps, num_samples=-1), "give time_budget_s"),
        (lambda: tuner(steps, search_alg="optna"), "there is no searcher named 'optna'; there are:"),
        (lambda: tuner(3), "trainable=3 is a int"),
        (lambda: tuner(int), "make it a subclass of tune.Trainable"),
        (lambda: tuner(lambda config, data: None), "Use tune.with_parameters"),
        (lambda: tuner("mine"), "there is no trainable named 'mine'"),
        (lambda: tuner(steps, max_concurrent_trials=0), "max_concurrent_trials=0"),
        (lambda: tune.with_resources(steps, {"gpu": 0.5}), "a trial has whole GPUs"),
        (lambda: tune.with_resources(steps, {"cpu": -1}), "give a number, 0 or more"),
        (lambda: tuner(steps, scheduler=ASHAScheduler(), metric=None, mode=None).fit(), "decides by a metric"),
        (lambda: tuner(steps, scheduler=ASHAScheduler(metric="loss", mode="min")).fit(), "give them once"),
    ],
)
def test_mistakes_are_told_before_anything_starts(make, words):
    with pytest.raises((ValueError, TypeError), match=re.escape(words)):
        make()


def test_an_unknown_metric_ends_the_search_after_its_first_trial_and_is_named(capfd):
    with pytest.raises(TuneError, match=r"metric 'scoer' is in no report.*Did you mean 'score'"):
        search(steps, num_samples=50, metric="scoer", max_concurrent_trials=1, run={"verbose": 1})
    assert "'scoer' is not in the first report" in capfd.readouterr().err


def test_what_a_stopper_raises_is_raised_by_fit():
    def broken(trial_id, result):
        raise KeyError("oops")

    with pytest.raises(TuneError, match=r"FunctionStopper.* raised KeyError") as caught:
        search(steps, run={"stop": broken})
    assert isinstance(caught.value.__cause__, KeyError)


def test_a_search_needs_workers_of_its_own():
    import shoal

    shoal.init(local_mode=True)
    try:
        with pytest.raises(TuneError, match="a search starts workers of its own"):
            search(steps)
    finally:
        shoal.shutdown()


# ---- the short form -------------------------------------------------------------------------------------------------


def test_tune_run_is_the_short_form():
    analysis = tune.run(steps, config={"a": tune.grid_search([1, 2])}, metric="score", mode="max", verbose=0)
    assert analysis.best_config["a"] == 2
    assert analysis.best_result["score"] == 6
    assert isinstance(analysis.grid, ResultGrid)

    def fails(config):
        raise ValueError("bad")

    with pytest.raises(TuneError, match=r"1 of 1 trials failed: .*bad"):
        tune.run(fails, config={}, verbose=0)
    assert tune.run(fails, config={}, verbose=0, raise_on_failed_trial=False).grid.num_errors == 1


# ---- schedulers with real trials ------------------------------------------------------------------------------------


def test_hyperband_with_real_trials():
    grid = search(
        Counter,
        scheduler=HyperBandScheduler(max_t=9, reduction_factor=3),
        num_samples=6,
        seed=2,
    )
    assert grid.num_terminated == 6
    assert max(result.metrics["n"] for result in grid) == 9


def test_the_schedule_of_a_population_is_run_again_by_one_trial():
    scheduler = pbt()
    grid = search(Counter, scheduler=scheduler, num_samples=4, seed=1, run={"stop": {"training_iteration": 12}})
    copied = next(number for number in range(4) if scheduler.lineage[-1].trial_id.endswith(f"{number}"))
    replay = PopulationBasedTrainingReplay(grid[copied].path)
    assert replay.schedule
    again = search(Counter, replay.config, scheduler=replay, run={"stop": {"training_iteration": 12}})
    assert again[0].config == grid[copied].config
    assert again[0].metrics["training_iteration"] == 12
    assert again[0].metrics["n"] == 12
    assert len(again[0].attempts) == len(replay.schedule) + 1


def test_a_trial_goes_on_with_other_resources():
    class Sees(Counter):
        def step(self):
            return {**super().step(), "cpus": self.trial_resources["CPU"]}

    def allocate(controller, trial, result, scheduler):
        return {"CPU": 2.0} if result["training_iteration"] == 2 else None

    scheduler = ResourceChangingScheduler(resources_allocation_function=allocate)
    grid = search(Sees, {"a": 1, "length": 5}, scheduler=scheduler)
    assert grid[0].metrics["cpus"] == 2.0
    assert grid[0].metrics["n"] == 5


def test_flow_3_of_the_specification_runs():
    source = """
        import torch
        from shoal import train, tune
        from shoal.train import ScalingConfig
        from shoal.train.torch import TorchTrainer
        from shoal.tune.schedulers import ASHAScheduler

        def train_func(config):
            lr = config["lr"]
            batch_size = config["batch_size"]
            model = torch.nn.Linear(4, 1)
            optimizer = torch.optim.Adam(model.parameters(), lr=lr)
            model = train.torch.prepare_model(model)
            for epoch in range(3):
                loss = model(torch.ones(batch_size, 4)).pow(2).mean()
                optimizer.zero_grad()
                train.torch.backward(loss)
                optimizer.step()
                train.report({"loss": loss.item(), "epoch": epoch})

        tuner = tune.Tuner(
            TorchTrainer(train_func, scaling_config=ScalingConfig(num_workers=2)),
            param_space={"lr": tune.loguniform(1e-5, 1e-2), "batch_size": tune.choice([16, 32, 64, 128])},
            tune_config=tune.TuneConfig(num_samples=4, scheduler=ASHAScheduler(metric="loss", mode="min")),
        )
        results = tuner.fit()
    """
    names: dict = {"__name__": "__main__"}
    exec(textwrap.dedent(source), names)
    results = names["results"]
    assert results.num_errors == 0
    assert results.get_best_result().config == results.get_best_result(metric="loss", mode="min").config
    assert set(results.get_best_result().config) == {"lr", "batch_size"}
