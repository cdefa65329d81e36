"""Searches that were interrupted, killed, or failed, and what their restoring does."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest
from searching import directories, search, tuner
from workers import run_script, start_script, wait_for

from shoal import tune
from shoal.errors import RunExists, StorageError
from shoal.tune import TuneConfig, Tuner
from shoal.tune.schedulers import ASHAScheduler

SWEEP = """
    import os, sys, time
    from pathlib import Path
    from shoal import tune
    from shoal.tune.schedulers import ASHAScheduler

    def objective(config):
        with open(Path(sys.argv[1]) / f"{config['n']}", "a") as file:
            file.write("begun\\n")
        for step in range(4):
            time.sleep(0.002)
            tune.report({"score": (config["n"] * 37 % 101) * (step + 1)})
        with open(Path(sys.argv[1]) / f"{config['n']}", "a") as file:
            file.write("done\\n")

    grid = tune.Tuner(
        objective,
        param_space={"n": tune.grid_search(list(range(200)))},
        tune_config=tune.TuneConfig(metric="score", mode="max", seed=1),
        run_config=tune.RunConfig(name="sweep", verbose=0, resume="auto"),
    ).fit()
    print("ended", len(grid), grid.num_terminated, grid.get_best_result().config["n"])
"""


def test_a_driver_that_is_killed_in_the_middle_loses_no_trial_and_runs_none_twice(tmp_path):
    traces = tmp_path / "traces"
    traces.mkdir()
    for _ in range(3):
        process = start_script(tmp_path, SWEEP, str(traces))
        before = len(list(traces.iterdir()))
        wait_for(lambda before=before: len(list(traces.iterdir())) >= before + 40, 60)
        process.kill()
        process.communicate()
    output = run_script(tmp_path, SWEEP, str(traces))
    assert "ended 200 200" in output
    runs = [(traces / str(n)).read_text().split() for n in range(200)]
    assert all(lines[-1] == "done" for lines in runs)
    finished_twice = [n for n, lines in enumerate(runs) if lines.count("done") > 1]
    assert len(finished_twice) <= 6  # those whose end was under way when the driver died
    assert all(run_script(tmp_path, SWEEP, str(traces)).count("ended 200 200") for _ in range(1))
    assert [(traces / str(n)).read_text().split() for n in range(200)] == runs  # nothing was run again


def test_a_name_is_not_used_twice_by_accident():  # C21
    search(lambda config: {"score": 1}, run={"name": "mine"})
    before = sorted(Path(os.environ["SHOAL_STORAGE_PATH"], "mine").rglob("*"))
    with pytest.raises(RunExists, match="mine"):
        search(lambda config: {"score": 1}, run={"name": "mine"})
    assert sorted(Path(os.environ["SHOAL_STORAGE_PATH"], "mine").rglob("*")) == before


def flaky(tmp_path):
    def objective(config):
        tune.report({"score": config["a"]})
        if config["a"] == 1 and not (tmp_path / "healed").exists():
            raise ValueError("bad")

    return objective


def test_finished_trials_stay_finished_and_failed_ones_can_be_run_again(tmp_path):  # C12
    objective = flaky(tmp_path)
    grid = search(
        objective,
        {"a": tune.grid_search([0, 1, 2, 3])},
        max_concurrent_trials=1,
        run={"name": "mine", "failure_config": tune.FailureConfig(fail_fast=True)},
    )
    assert (len(grid), grid.num_errors) == (2, 1)
    written = (Path(grid[0].path) / "metrics.jsonl").stat().st_mtime_ns
    (tmp_path / "healed").touch()
    assert Tuner.can_restore(grid.experiment_path)
    left = Tuner.restore(grid.experiment_path, objective).fit()
    assert (len(left), left.num_errors, left.num_terminated) == (4, 1, 3)
    again = Tuner.restore(grid.experiment_path, objective, restart_errored=True).fit()
    assert (again.num_errors, again.num_terminated) == (0, 4)
    assert (Path(again[0].path) / "metrics.jsonl").stat().st_mtime_ns == written
    assert again.get_best_result().config == {"a": 3}
    aside = [path.name for path in directories(again) if ".before-" in path.name]
    assert len(aside) == 1  # what there was of the failed one is kept


def test_failed_trials_can_go_on_from_their_checkpoints(tmp_path):
    def counts(config):
        checkpoint = tune.get_checkpoint()
        start = json.loads(Path(checkpoint.path, "step").read_text()) if checkpoint else 0
        for step in range(start, 6):
            if step == 3 and not (tmp_path / "healed").exists():
                raise ValueError("bad")
            directory = tmp_path / f"checkpoint-{step}"
            directory.mkdir()
            (directory / "step").write_text(str(step + 1))
            tune.report({"score": step}, checkpoint=tune.Checkpoint(directory))

    grid = search(counts, {"a": 1}, run={"name": "mine"})
    assert grid.num_errors == 1
    (tmp_path / "healed").touch()
    again = Tuner.restore(grid.experiment_path, counts, resume_errored=True).fit()
    assert again.num_errors == 0
    assert again[0].metrics["training_iteration"] == 6
    assert len(again[0].metrics_dataframe) == 6


def test_ctrl_c_keeps_the_state_and_says_how_to_go_on(tmp_path):
    script = """
        import sys, time
        from shoal import tune

        def objective(config):
            for step in range(100):
                tune.report({"score": step})
                print("reported", flush=True)
                time.sleep(0.05)

        tune.Tuner(
            objective,
            tune_config=tune.TuneConfig(metric="score", mode="max", num_samples=2),
            run_config=tune.RunConfig(name="mine"),
        ).fit()
    """
    process = start_script(tmp_path, script)
    assert process.stdout is not None
    lines = []
    while not any("reported" in line for line in lines):
        lines.append(process.stdout.readline())
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=30)
    assert "Tuner.restore(" in output
    assert "mine STOPPED: interrupted with Ctrl-C" in output

    def short(config):
        tune.report({"score": 1})

    grid = Tuner.restore(tmp_path / "runs" / "mine", short, run_config=tune.RunConfig(verbose=0)).fit()
    assert grid.num_terminated == 2


def test_standard_settings_come_back_and_what_is_one_s_own_is_asked_for():
    scheduler = ASHAScheduler(max_t=7, grace_period=2, reduction_factor=2)
    space = {"a": tune.loguniform(0.1, 1), "b": {"c": tune.choice([(1, 2), "x"])}}
    grid = search(lambda config: {"score": 1}, space, scheduler=scheduler, num_samples=2, run={"name": "mine"})
    again = Tuner.restore(grid.experiment_path, lambda config: {"score": 1})
    assert again._space == space
    assert again._scheduler.rungs == scheduler.rungs
    assert (again._config.num_samples, again._config.metric) == (2, "score")
    again = again.fit()
    assert [result.config for result in again] == [result.config for result in grid]

    class Mine:
        pass

    grid = search(lambda config: {"score": 1}, {"net": tune.choice([Mine()])}, run={"name": "other"})
    with pytest.raises(ValueError, match="give param_space"):
        Tuner.restore(grid.experiment_path, lambda config: {"score": 1})


def test_restoring_executes_nothing_of_the_directory(tmp_path):  # C29
    grid = search(lambda config: {"score": 1}, run={"name": "mine"})
    asked = Path(grid.experiment_path) / "experiment.json"
    kept = json.loads(asked.read_text())
    kept["tune_config"]["scheduler"] = {"$class": "os:system", "arguments": [f"touch {tmp_path / 'ran'}"], "named": {}}
    asked.write_text(json.dumps(kept))
    with pytest.raises(ValueError, match="no class of shoal"):
        Tuner.restore(grid.experiment_path, lambda config: {"score": 1})
    assert not (tmp_path / "ran").exists()


def test_where_there_is_no_search_that_is_said(tmp_path):
    assert not Tuner.can_restore(tmp_path)
    with pytest.raises(StorageError, match="there is no search at"):
        Tuner.restore(tmp_path, lambda config: {"score": 1})


def test_a_restored_search_obeys_its_limits(tmp_path):  # C22
    def objective(config):
        time.sleep(0.05)
        tune.report({"score": len(list((tmp_path).glob("running-*")))})

    grid = search(objective, num_samples=3, max_concurrent_trials=1, run={"name": "mine"})
    again = tuner(objective, num_samples=5, max_concurrent_trials=1, run={"name": "mine", "resume": "auto"}).fit()
    assert len(again) == 3  # it has finished
    assert [result.metrics["timestamp"] for result in again] == [result.metrics["timestamp"] for result in grid]
    assert TuneConfig(num_samples=5).num_samples == 5


def test_keys_that_come_later_stay_in_their_columns_after_a_restore(tmp_path):  # C23
    def objective(config):
        tune.report({"score": 1})
        if not (tmp_path / "healed").exists():
            raise ValueError("bad")
        tune.report({"score": 2, "later": 5})

    grid = search(objective, {"a": 1}, run={"name": "mine"})
    (tmp_path / "healed").touch()
    again = Tuner.restore(grid.experiment_path, objective, resume_errored=True).fit()
    rows = (Path(again[0].path) / "progress.csv").read_text().splitlines()
    header = rows[0].split(",")
    assert rows[-1].split(",")[header.index("later")] == "5"
    assert rows[-1].split(",")[header.index("score")] == "2"


def test_reports_that_the_last_driver_could_not_write_down_are_seen_by_the_next(tmp_path):
    def counts(config):
        checkpoint = tune.get_checkpoint()
        start = json.loads(Path(checkpoint.path, "step").read_text()) if checkpoint else 0
        for step in range(start, 6):
            if step == 4 and not (tmp_path / "healed").exists():
                raise ValueError("bad")
            directory = tmp_path / f"checkpoint-{step}"
            directory.mkdir()
            (directory / "step").write_text(str(step + 1))
            tune.report({"score": step}, checkpoint=tune.Checkpoint(directory))

    grid = search(counts, {"a": 1}, run={"name": "mine"})
    journal = Path(grid.experiment_path) / "journal.jsonl"
    lines = journal.read_text().splitlines()
    kept = [line for line in lines if not ('"TrialResult"' in line and json.loads(line)["n"] >= 3)]
    assert len(lines) - len(kept) == 2
    journal.write_text("\n".join(kept) + "\n")
    (tmp_path / "healed").touch()
    Tuner.restore(grid.experiment_path, counts, resume_errored=True).fit()
    records = [json.loads(line) for line in journal.read_text().splitlines()]
    assert [record["n"] for record in records if record["record"] == "TrialResult"] == [1, 2, 3, 4, 5, 6]
