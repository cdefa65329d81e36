"""Population based training of a function that keeps its state in checkpoints."""

import os
import random
import tempfile

from ray import tune
from ray.tune import Checkpoint
from ray.tune.schedulers import PopulationBasedTraining


def train_func(config):
    step, accuracy = 0, 0.0
    checkpoint = tune.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as directory, open(os.path.join(directory, "state")) as file:
            step, accuracy = map(float, file.read().split())
    while step < 12:
        step += 1
        accuracy += config["lr"]
        with tempfile.TemporaryDirectory() as directory:
            with open(os.path.join(directory, "state"), "w") as file:
                file.write(f"{step} {accuracy}")
            tune.report({"accuracy": accuracy}, checkpoint=Checkpoint.from_directory(directory))


pbt = PopulationBasedTraining(
    time_attr="training_iteration",
    metric="accuracy",
    mode="max",
    perturbation_interval=3,
    hyperparam_mutations={"lr": lambda: random.uniform(0.1, 1.0)},
)
results = tune.Tuner(
    train_func,
    param_space={"lr": tune.uniform(0.1, 1)},
    tune_config=tune.TuneConfig(scheduler=pbt, num_samples=4),
    run_config=tune.RunConfig(name="pbt", checkpoint_config=tune.CheckpointConfig(num_to_keep=2)),
).fit()
print("done", results.num_errors)
