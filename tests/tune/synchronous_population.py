"""A search in which trials go on from checkpoints that their owners have let go of, and whose driver may be killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SEARCH = '''
import os, signal, sys
from pathlib import Path

from shoal import tune


class Counter(tune.Trainable):
    def setup(self, config):
        self.count = 0

    def step(self):
        self.count += 1
        return {"score": self.count * self.config["a"], "n": self.count}

    def save_checkpoint(self, directory):
        Path(directory, "count").write_text(str(self.count))

    def load_checkpoint(self, directory):
        self.count = int(Path(directory, "count").read_text())


class Killer(tune.Callback):
    """Ends this process without a word when a trial is started for the n-th time."""

    def __init__(self, starts):
        self.starts = starts

    def on_trial_start(self, iteration, trials, trial, **info):
        self.starts -= 1
        if self.starts == 0:
            os.kill(os.getpid(), signal.SIGKILL)


scheduler = tune.schedulers.PopulationBasedTraining(
    time_attr="training_iteration", perturbation_interval=3, synch=True, seed=1,
    hyperparam_mutations={"a": tune.uniform(0, 1)},
)
tuner = tune.Tuner(
    Counter,
    param_space={"a": tune.uniform(0, 1)},
    # One at a time: when a trial is to go on from another one's third step, that one has its sixth, and keeps no other.
    tune_config=tune.TuneConfig(
        metric="score", mode="max", scheduler=scheduler, num_samples=4, max_concurrent_trials=1, seed=4
    ),
    run_config=tune.RunConfig(
        name="population", storage_path=sys.argv[1], verbose=0, stop={"training_iteration": 12},
        checkpoint_config=tune.CheckpointConfig(num_to_keep=1), callbacks=[Killer(int(sys.argv[2]))],
    ),
)
if int(sys.argv[2]) < 0 and tune.Tuner.can_restore(f"{sys.argv[1]}/population"):
    tuner = tune.Tuner.restore(f"{sys.argv[1]}/population", Counter)
grid = tuner.fit()
assert scheduler.lineage or sys.argv[3:], "nothing was cloned"
print([result.metrics["n"] for result in grid])
'''


def search(directory: Path, kill_at: int = -1, *more: str, storage: str = "") -> subprocess.CompletedProcess[str]:
    """Run it, with its driver killed when a trial is started for the ``kill_at``-th time."""
    script = directory / ".search.py"
    script.write_text(SEARCH)
    return subprocess.run(
        [sys.executable, script, storage or directory, str(kill_at), *more],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
