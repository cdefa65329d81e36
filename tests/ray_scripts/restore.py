"""A search that is interrupted by its first failure, and restored with the failed trials resumed."""

import os

import ray
from ray import train, tune

ray.init()
storage = os.environ["SHOAL_STORAGE_PATH"]
broken = os.path.join(storage, "broken")


def objective(config):
    if config["x"] == 2 and not os.path.exists(broken):
        open(broken, "w").close()
        raise RuntimeError("once")
    train.report({"score": config["x"]})


first = tune.Tuner(
    objective,
    param_space={"x": tune.grid_search([1, 2, 3])},
    run_config=train.RunConfig(name="again", storage_path=storage, failure_config=train.FailureConfig(max_failures=0)),
).fit()
assert first.num_errors == 1
path = os.path.join(storage, "again")
assert tune.Tuner.can_restore(path)
results = tune.Tuner.restore(path, trainable=objective, resume_errored=True).fit()
assert results.num_errors == 0
print("done", sorted(result.metrics["score"] for result in results))
