"""A DataParallelTrainer whose function imports Ray in the worker."""

from ray.train import RunConfig, ScalingConfig
from ray.train.data_parallel_trainer import DataParallelTrainer


def train_func(config):
    import ray.train
    from ray import train as again

    context = again.get_context()
    ray.train.report({"rank": context.get_world_rank(), "name": context.get_experiment_name(), **config})


result = DataParallelTrainer(
    train_func,
    train_loop_config={"lr": 1},
    scaling_config=ScalingConfig(num_workers=2),
    run_config=RunConfig(name="dp"),
).fit()
print("done", result.metrics["name"], result.metrics["lr"], result.error)
