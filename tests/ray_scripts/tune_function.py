"""A function with ASHA."""

from ray import tune
from ray.tune.schedulers import ASHAScheduler


def objective(config):
    for step in range(8):
        tune.report({"score": config["a"] ** 2 + config["b"] * step})


tuner = tune.Tuner(
    tune.with_resources(objective, {"cpu": 1}),
    param_space={"a": tune.uniform(0, 1), "b": tune.choice([1, 2, 3])},
    tune_config=tune.TuneConfig(
        metric="score", mode="max", num_samples=6, scheduler=ASHAScheduler(max_t=8, grace_period=2)
    ),
    run_config=tune.RunConfig(name="asha", stop={"training_iteration": 8}),
)
results = tuner.fit()
best = results.get_best_result()
assert best.config["b"] == 3 or len(results.get_dataframe()) == 6
print("done", len(results), results.num_errors)
