"""A search over a trainer with two workers in each trial."""

from ray import train, tune
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
from ray.tune import TuneConfig, Tuner


def train_func(config):
    for epoch in range(3):
        train.report({"loss": config["lr"] * (3 - epoch), "world": train.get_context().get_world_size()})


trainer = TorchTrainer(train_func, scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"CPU": 1}))
results = Tuner(
    trainer,
    param_space={"train_loop_config": {"lr": tune.loguniform(1e-3, 1e-1)}},
    tune_config=TuneConfig(num_samples=2, metric="loss", mode="min"),
    run_config=RunConfig(name="over_trainer"),
).fit()
assert all(result.metrics["world"] == 2 for result in results)
print("done", results.get_best_result().metrics["training_iteration"])
