"""A search that is kept on an S3 server: killed and gone on with, with checkpoints that other trials take over."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from workers import start_script, wait_for

from shoal import train, tune
from shoal.train import Checkpoint, RunConfig
from shoal.tune.schedulers import PopulationBasedTraining

HERE = Path(__file__).parent


def steps(config: dict[str, Any]) -> None:
    start = 0
    if checkpoint := tune.get_checkpoint():
        with checkpoint.as_directory() as directory:
            start = int(Path(directory, "step").read_text())
    for step in range(start + 1, 5):
        if config["x"] == 2 and step == 3 and config["waits_at"] and not os.path.exists(config["waits_at"]):
            Path(config["waits_at"]).touch()
            time.sleep(60)
        with train.checkpoint_dir() as directory:
            Path(directory, "step").write_text(str(step))
            tune.report({"score": config["x"] * step, "start": start}, checkpoint=Checkpoint(directory))


def tuner(place: str, name: str, waits_at: str = "", callbacks: Any = None, **config: Any) -> tune.Tuner:
    return tune.Tuner(
        steps,
        param_space={"x": tune.grid_search([1, 2, 3, 4]), "waits_at": waits_at},
        tune_config=tune.TuneConfig(metric="score", mode="max", max_concurrent_trials=2, **config),
        run_config=RunConfig(storage_path=place, name=name, verbose=0, resume="auto", callbacks=callbacks),
    )


def test_a_search_whose_driver_was_killed_goes_on_from_what_is_on_the_server(s3: str, tmp_path: Path) -> None:
    there = tmp_path / "there"
    driver = start_script(
        tmp_path,
        f"""
        import sys
        sys.path[:0] = {[str(HERE.parent), str(HERE.parent / "local")]!r}
        from storage.test_search_on_s3 import tuner
        tuner({s3!r}, "sweep", {str(there)!r}).fit()
        """,
    )
    try:
        wait_for(there.exists, 60)
    finally:
        driver.kill()
        driver.wait()
    grid = tuner(s3, "sweep", str(there)).fit()
    assert grid.num_terminated == 4
    assert [result.metrics["score"] for result in grid] == [4, 8, 12, 16]
    assert all(str(result.checkpoint.path).startswith(f"{result.path}/") for result in grid)
    second = grid[1]
    assert second.metrics["start"] == 2  # what had returned was committed
    assert list(second.metrics_dataframe["training_iteration"]) == [1, 2, 3, 4]
    assert grid.experiment_path == f"{s3}/sweep"
    again = tune.Tuner.restore(f"{s3}/sweep", steps).fit()
    assert [result.metrics["score"] for result in again] == [4, 8, 12, 16]


def test_what_a_callback_remembers_is_on_the_server_too(s3: str) -> None:
    class Counting(tune.Callback):
        count = 0

        def on_trial_result(self, iteration, trials, trial, result, **info):  # type: ignore[no-untyped-def]
            self.count += 1

        def get_state(self) -> dict[str, Any]:
            return {"count": self.count}

        def set_state(self, state: dict[str, Any]) -> None:
            self.count = state["count"]

    for counting in (Counting(), Counting()):
        tuner(s3, "counted", callbacks=[counting]).fit()
        assert counting.count == 16


def test_a_population_on_a_server_takes_over_checkpoints_of_its_better_ones(s3: str) -> None:
    scheduler = PopulationBasedTraining(
        time_attr="training_iteration",
        perturbation_interval=1,
        hyperparam_mutations={"x": tune.uniform(1, 4)},
        synch=True,
    )
    grid = tuner(s3, "population", scheduler=scheduler).fit()
    assert grid.num_terminated == 4
    assert scheduler.lineage
    # What was taken over is what was scored, also where it was still on its way to the server when that was decided.
    assert [list(result.metrics_dataframe["training_iteration"]) for result in grid] == [[1, 2, 3, 4]] * 4
