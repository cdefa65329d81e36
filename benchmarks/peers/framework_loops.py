"""A training loop of each framework: the same under shoal and under the framework's own way to start two processes.

``python framework_loops.py NAME [RANK PORT]`` runs one as a peer; rank 0 prints the steps a second last.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

WORLD = 2
Report = Callable[[dict[str, Any]], None]


class Clock:
    """Counts steps after some to warm up with."""

    def __init__(self, warm_up: int):
        self.warm_up, self.steps, self.began = warm_up, 0, 0.0

    def step(self) -> None:
        self.steps += 1
        if self.steps == self.warm_up:
            self.began = time.perf_counter()

    @property
    def speed(self) -> float:
        return (self.steps - self.warm_up) / (time.perf_counter() - self.began)


def rows(count: int, columns: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    features = random.standard_normal((count, columns), dtype=np.float32)
    return features, (features[:, 0] + features[:, 1] > 0).astype(np.int64)


def network():
    from torch import nn

    return nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 2))


def accelerate(report: Report, steps: int = 300) -> float:
    import torch
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    torch.set_num_threads(1)
    features, labels = map(torch.as_tensor, rows(64 * WORLD * (steps + 30), 256))
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(features, labels), batch_size=64)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    clock = Clock(30)
    for number, (batch, targets) in enumerate(loader):
        loss = torch.nn.functional.cross_entropy(model(batch), targets)
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        report({"step": number, "loss": loss.item()})
        clock.step()
    return clock.speed


def deepspeed(report: Report, steps: int = 150) -> float:
    import deepspeed as library
    import torch

    torch.set_num_threads(1)
    model = network()
    settings = {
        "train_micro_batch_size_per_gpu": 64,
        "optimizer": {"type": "Adam", "params": {"lr": 1e-3, "torch_adam": True}},
        "zero_optimization": {"stage": 1},
    }
    engine, *_ = library.initialize(model=model, model_parameters=model.parameters(), config=settings)
    batch, targets = map(torch.as_tensor, rows(64, 256))
    clock = Clock(20)
    for number in range(steps + 20):
        loss = torch.nn.functional.cross_entropy(engine(batch), targets)
        engine.backward(loss)
        engine.step()
        report({"step": number, "loss": loss.item()})
        clock.step()
    return clock.speed


def transformers(report: Report, steps: int = 120) -> float:
    import tempfile

    import torch
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments

    torch.set_num_threads(1)
    clock = Clock(20)

    class Watch(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            clock.step()

    random = np.random.default_rng(0)
    data = [{"input_ids": random.integers(0, 100, 32), "labels": int(random.integers(2))} for _ in range(16 * 400)]
    settings = BertConfig(vocab_size=100, hidden_size=64, num_hidden_layers=2, num_attention_heads=2)
    with tempfile.TemporaryDirectory() as place:
        arguments = TrainingArguments(
            place,
            max_steps=steps + 20,
            per_device_train_batch_size=16,
            logging_steps=10,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
        )
        Trainer(BertForSequenceClassification(settings), arguments, train_dataset=data, callbacks=[Watch()]).train()
    return clock.speed


def lightning(report: Report, steps: int = 300, **settings: Any) -> float:
    import logging

    import torch
    from lightning.pytorch import Callback, LightningModule, Trainer

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    clock = Clock(30)

    class Watch(Callback):
        def on_train_batch_end(self, *_: Any) -> None:
            clock.step()

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layers = network()

        def training_step(self, batch: Any, number: int) -> Any:
            loss = torch.nn.functional.cross_entropy(self.layers(batch[0]), batch[1])
            report({"step": number, "loss": loss.item()})
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    features, labels = map(torch.as_tensor, rows(64 * WORLD * (steps + 30), 256))
    trainer = Trainer(
        max_epochs=1,
        accelerator="cpu",
        callbacks=[Watch()],
        enable_progress_bar=False,
        enable_model_summary=False,
        logger=False,
        enable_checkpointing=False,
        **(settings or {"devices": WORLD, "strategy": "ddp"}),
    )
    trainer.fit(Module(), torch.utils.data.DataLoader(torch.utils.data.TensorDataset(features, labels), batch_size=64))
    return clock.speed


def jax(report: Report, steps: int = 600) -> float:
    import jax as library
    import jax.numpy as jnp
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    mesh = Mesh(np.array(library.devices()), ("rows",))
    by_rows, everywhere = NamedSharding(mesh, PartitionSpec("rows")), NamedSharding(mesh, PartitionSpec())
    features, labels = rows(64, 256)
    features = library.make_array_from_process_local_data(by_rows, features)
    labels = library.make_array_from_process_local_data(by_rows, labels.astype(np.float32))
    weights = library.device_put((np.full((256, 512), 0.01, np.float32), np.full((512,), 0.01, np.float32)), everywhere)

    @library.jit
    def step(weights: Any, features: Any, labels: Any) -> Any:
        def loss_of(weights: Any) -> Any:
            return jnp.mean((jnp.tanh(features @ weights[0]) @ weights[1] - labels) ** 2)

        loss, gradients = library.value_and_grad(loss_of)(weights)
        weights = library.tree.map(lambda weight, gradient: weight - 0.01 * gradient, weights, gradients)
        return loss, library.lax.with_sharding_constraint(weights, everywhere)

    clock = Clock(50)
    for number in range(steps + 50):
        loss, weights = step(weights, features, labels)
        report({"step": number, "loss": float(loss)})
        clock.step()
    return clock.speed


def tensorflow(report: Report, steps: int = 300) -> float:
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    clock = Clock(30)

    class Watch(tf.keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            report({"step": batch, "loss": float(logs["loss"])})
            clock.step()

    with strategy.scope():
        dense = tf.keras.layers.Dense
        model = tf.keras.Sequential([tf.keras.layers.Input((256,)), dense(256, "relu"), dense(2)])
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(tf.keras.optimizers.SGD(0.01), loss)
    data = tf.data.Dataset.from_tensor_slices(rows(64 * 100, 256)).repeat().batch(64)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    model.fit(data.with_options(options), steps_per_epoch=steps + 30, verbose=0, callbacks=[Watch()])
    return clock.speed


def xgboost(report: Report, steps: int = 120) -> float:
    import xgboost as library

    clock = Clock(10)

    class Watch(library.callback.TrainingCallback):
        def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
            report({"step": epoch, "loss": evals_log["train"]["logloss"][-1]})
            clock.step()
            return False

    features, labels = rows(20_000, 30)
    data = library.DMatrix(features, labels)
    settings = {"objective": "binary:logistic", "max_depth": 4, "eta": 0.1, "nthread": 1}
    library.train(settings, data, steps + 10, evals=[(data, "train")], verbose_eval=False, callbacks=[Watch()])
    return clock.speed


def lightgbm(report: Report, steps: int = 40, **network_settings: Any) -> float:
    import lightgbm as library

    clock = Clock(5)

    def watch(env: Any) -> None:
        report({"step": env.iteration, "loss": env.evaluation_result_list[0][2]})
        clock.step()

    features, labels = rows(20_000, 30)
    data = library.Dataset(features, labels)
    settings = {"objective": "binary", "num_leaves": 4, "num_threads": 1, "verbose": -1, "tree_learner": "data"}
    settings |= {"pre_partition": True, **network_settings}
    library.train(settings, data, steps + 5, valid_sets=[data], callbacks=[watch])
    return clock.speed


def _peer(name: str, rank: int, port: int) -> float:
    def nothing(metrics: dict[str, Any]) -> None:
        pass

    if name in {"accelerate", "transformers", "lightning"}:
        return globals()[name](nothing)
    if name == "deepspeed":
        os.environ.setdefault("LOCAL_SIZE", str(WORLD))
        return deepspeed(nothing)
    if name == "jax":
        import jax as library

        library.config.update("jax_cpu_collectives_implementation", "gloo")
        library.distributed.initialize(f"127.0.0.1:{port}", WORLD, rank)
        return jax(nothing)
    if name == "tensorflow":
        workers = [f"127.0.0.1:{port + each}" for each in range(WORLD)]
        os.environ["TF_USE_LEGACY_KERAS"] = "1"  # Keras 3 does not train under this strategy
        os.environ["TF_CONFIG"] = json.dumps(
            {"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}}
        )
        return tensorflow(nothing)
    if name == "lightgbm":
        machines = ",".join(f"127.0.0.1:{port + each}" for each in range(WORLD))
        return lightgbm(nothing, machines=machines, local_listen_port=port + rank, num_machines=WORLD)
    import xgboost as library
    from xgboost.tracker import RabitTracker

    if rank == 0:
        tracker = RabitTracker(WORLD, "127.0.0.1", port, sortby="task")
        tracker.start()
    arguments = {"dmlc_tracker_uri": "127.0.0.1", "dmlc_tracker_port": port}
    with library.collective.CommunicatorContext(dmlc_task_id=str(rank), **arguments):
        return xgboost(nothing)


def _processes(name: str, port: int) -> float:
    """Start two processes, the way that a user without a launcher does, and return what rank 0 prints."""
    command = [sys.executable, __file__, name]
    started = [
        subprocess.Popen([*command, str(rank), str(port)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for rank in range(WORLD)
    ]
    out, errors = started[0].communicate()
    started[1].communicate()
    if started[0].returncode:
        raise RuntimeError(errors[-3000:])
    return float(out.split()[-1])


if __name__ == "__main__":
    ranks = [*map(int, sys.argv[2:])] or [int(os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0"))), 0]
    speed = _peer(sys.argv[1], *ranks)
    if ranks[0] == 0:
        print(speed, flush=True)
    sys.stdout.flush()
    os._exit(0)
