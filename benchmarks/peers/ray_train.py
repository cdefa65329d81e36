"""Runs in the peers' environment: prints as JSON what Ray Train needs for the same things."""

import json
import os
import pathlib
import signal
import statistics
import tempfile
import time

import ray
from ray import train
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer


def train_func(config):
    file = pathlib.Path(config["place"], f"line-{train.get_context().get_world_rank()}")
    again = file.exists()
    with open(file, "a") as out:
        out.write(f"{time.time()}\n")
    if not again:
        samples = []
        for _ in range(3):
            began = time.perf_counter()
            train.report({"x": 1})
            samples.append(time.perf_counter() - began)
        (pathlib.Path(config["place"]) / "report").write_text(json.dumps(samples))
        if train.get_context().get_world_rank() == 1:
            (pathlib.Path(config["place"]) / "died").write_text(repr(time.time()))
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)


place = tempfile.mkdtemp()
began = time.time()
trainer = TorchTrainer(
    train_func,
    train_loop_config={"place": place},
    scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"CPU": 0.5}),
    run_config=RunConfig(storage_path=place, failure_config=FailureConfig(max_failures=1)),
)
trainer.fit()
lines = [float(line) for line in pathlib.Path(place, "line-0").read_text().split()]
died = float(pathlib.Path(place, "died").read_text())
print(
    json.dumps(
        {
            "first_line": lines[0] - began,
            "restart": lines[1] - died,
            "report": statistics.median(json.loads(pathlib.Path(place, "report").read_text())),
        }
    )
)
ray.shutdown()
