"""A Trainable class, and the older tune.run."""

import os

from ray import tune
from ray.tune import CLIReporter


class Quadratic(tune.Trainable):
    def setup(self, config):
        self.x = 0.0
        self.lr = config["lr"]

    def step(self):
        self.x += self.lr * (3 - self.x)
        return {"distance": abs(3 - self.x)}

    def save_checkpoint(self, checkpoint_dir):
        with open(os.path.join(checkpoint_dir, "x"), "w") as file:
            file.write(str(self.x))

    def load_checkpoint(self, checkpoint_dir):
        with open(os.path.join(checkpoint_dir, "x")) as file:
            self.x = float(file.read())


analysis = tune.run(
    Quadratic,
    config={"lr": tune.grid_search([0.1, 0.5])},
    stop={"training_iteration": 5},
    metric="distance",
    mode="min",
    progress_reporter=CLIReporter(metric_columns=["distance"]),
    verbose=1,
)
assert analysis.best_config == {"lr": 0.5}
print("done", round(analysis.best_result["distance"], 3))
