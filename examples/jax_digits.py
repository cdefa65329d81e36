"""Train a small network in JAX on handwritten digits: the rows are sharded over two processes, the weights are not."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from shoal import train
from shoal.train import Checkpoint, FailureConfig, RunConfig, ScalingConfig
from shoal.train.jax import JaxTrainer


def load_data() -> list[np.ndarray]:
    images, labels = load_digits(return_X_y=True)
    return train_test_split((images / 16.0).astype("float32"), labels, test_size=0.25, random_state=0, stratify=labels)


def first_weights() -> list[np.ndarray]:
    random = np.random.default_rng(0)
    sizes = ((64, 128), (128, 10))
    return [w for i, o in sizes for w in (random.normal(0, i**-0.5, (i, o)).astype("float32"), np.zeros(o, "float32"))]


def train_func(config: dict) -> None:
    import jax
    import jax.numpy as jnp
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    x_train, x_test, y_train, y_test = load_data()
    mesh = Mesh(np.array(jax.devices()), ("rows",))
    by_rows, everywhere = NamedSharding(mesh, PartitionSpec("rows")), NamedSharding(mesh, PartitionSpec())
    size, rank = jax.process_count(), jax.process_index()
    share = len(x_train) // size
    mine = slice(rank * share, (rank + 1) * share)
    images, labels = (jax.make_array_from_process_local_data(by_rows, part[mine]) for part in (x_train, y_train))

    def logits(weights, images):
        return jax.nn.relu(images @ weights[0] + weights[1]) @ weights[2] + weights[3]

    def loss_of(weights, images, labels):
        return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits(weights, images)), labels[:, None], 1))

    @jax.jit
    def epoch(weights, images, labels):
        def step(weights, _):
            loss, gradients = jax.value_and_grad(loss_of)(weights, images, labels)
            return [w - 0.5 * g for w, g in zip(weights, gradients, strict=True)], loss

        weights, losses = jax.lax.scan(step, weights, length=20)
        return jax.lax.with_sharding_constraint(weights, everywhere), losses[-1]

    begin, start = 0, first_weights()
    if checkpoint := train.get_checkpoint():
        with checkpoint.as_directory() as directory:
            saved = np.load(Path(directory, "weights.npz"))
        start, begin = [saved[f"arr_{i}"] for i in range(4)], int(saved["epoch"]) + 1
    weights = jax.device_put(start, everywhere)
    for number in range(begin, config["epochs"]):
        weights, loss = epoch(weights, images, labels)
        here = [np.asarray(w) for w in weights]
        accuracy = float(np.mean(np.argmax(logits(here, x_test), 1) == y_test))
        with train.checkpoint_dir() as directory:
            if rank == 0:
                np.savez(directory / "weights.npz", *here, epoch=number)
            metrics = {"epoch": number, "loss": float(loss), "test_accuracy": accuracy}
            train.report(metrics, checkpoint=Checkpoint.from_directory(directory))


def make_trainer(function=train_func, epochs: int = 20, **run) -> JaxTrainer:
    return JaxTrainer(
        function,
        train_loop_config={"epochs": epochs},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(failure_config=FailureConfig(max_failures=1), **run),
    )


if __name__ == "__main__":
    accuracy = make_trainer().fit().metrics["test_accuracy"]
    print(f"test accuracy: {accuracy:.3f}")
    sys.exit(accuracy < 0.93)
