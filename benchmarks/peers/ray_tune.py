"""Runs in the peers' environment: prints the trials a second of Ray Tune, one report each, two at a time."""

import tempfile
import time

import ray
from ray import tune

COUNT = 40


def objective(config):
    tune.report({"loss": (config["x"] - 0.3) ** 2})


ray.init(num_cpus=2, log_to_driver=False, include_dashboard=False)


def fit(count):
    tune.Tuner(
        objective,
        param_space={"x": tune.uniform(0, 1)},
        tune_config=tune.TuneConfig(metric="loss", mode="min", num_samples=count, max_concurrent_trials=2),
        run_config=tune.RunConfig(storage_path=tempfile.mkdtemp(), verbose=0),
    ).fit()


fit(2)
began = time.perf_counter()
fit(COUNT)
print(COUNT / (time.perf_counter() - began))
