"""Optuna's sampler behind a concurrency limit, with a callback and a stopper."""

import ray
from ray import tune
from ray.air.integrations.mlflow import MLflowLoggerCallback
from ray.tune.logger import CSVLoggerCallback, LoggerCallback
from ray.tune.search import ConcurrencyLimiter
from ray.tune.search.optuna import OptunaSearch
from ray.tune.stopper import MaximumIterationStopper


class Printer(LoggerCallback):
    def log_trial_end(self, trial, failed=False):
        print("ended", trial.trial_id)


def objective(config):
    for step in range(10):
        tune.report({"loss": (config["x"] - 1) ** 2 + 1 / (step + 1)})


results = tune.Tuner(
    objective,
    param_space={"x": tune.uniform(-2, 2), "depth": tune.randint(1, 5)},
    tune_config=tune.TuneConfig(
        search_alg=ConcurrencyLimiter(OptunaSearch(seed=1), max_concurrent=2), num_samples=5, metric="loss", mode="min"
    ),
    run_config=ray.tune.RunConfig(
        callbacks=[Printer(), CSVLoggerCallback(), MLflowLoggerCallback("sqlite:///mlflow.db", experiment_name="x")],
        stop=MaximumIterationStopper(3),
    ),
).fit()
assert {result.metrics["training_iteration"] for result in results} == {3}
print("done", len(results))
