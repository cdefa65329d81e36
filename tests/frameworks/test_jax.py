"""JAX: arrays sharded over two workers, killed and gone on with; the result is that of one worker."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal import train
from shoal.train import Checkpoint, FailureConfig, RunConfig, ScalingConfig
from shoal.train.jax import JaxConfig, JaxTrainer


def script(config: dict[str, Any]) -> None:
    import jax
    import jax.numpy as jnp
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    mesh = Mesh(np.array(jax.devices()), ("rows",))
    by_rows, everywhere = NamedSharding(mesh, PartitionSpec("rows")), NamedSharding(mesh, PartitionSpec())
    inputs = np.linspace(-1, 1, 64).reshape(64, 1)
    mine = slice(None)
    if jax.process_count() > 1:
        share = 64 // jax.process_count()
        mine = slice(jax.process_index() * share, (jax.process_index() + 1) * share)
    features = jax.make_array_from_process_local_data(by_rows, inputs[mine])
    targets = jax.make_array_from_process_local_data(by_rows, (3 * inputs + 1)[mine])

    @jax.jit
    def step(weights, features, targets):
        def loss_of(weights):
            return jnp.mean((features * weights[0] + weights[1] - targets) ** 2)

        loss, gradient = jax.value_and_grad(loss_of)(weights)
        return loss, jax.lax.with_sharding_constraint(weights - 0.3 * gradient, everywhere)

    begin, weights = 0, np.zeros(2, dtype=np.float32)
    if checkpoint := train.get_checkpoint():
        with checkpoint.as_directory() as directory:
            weights = np.load(Path(directory, "weights.npy"))
            begin = int(Path(directory, "step").read_text())
    weights = jax.device_put(weights, everywhere)
    for number in range(begin, 40):
        loss, weights = step(weights, features, targets)
        metrics = {"loss": float(loss), "devices": jax.device_count(), "step": number}
        if number % 10 != 9:
            train.report(metrics)
            continue
        with train.checkpoint_dir() as directory:
            if jax.process_index() == 0:
                np.save(Path(directory, "weights.npy"), np.asarray(weights))
                Path(directory, "step").write_text(str(number + 1))
            train.report(metrics, checkpoint=Checkpoint(directory))
        if config.get("dies") and jax.process_index() == 1 and not os.path.exists(config["dies"]):
            Path(config["dies"]).touch()
            os._exit(3)


def fit(workers: int, config: dict[str, Any] | None = None, **run: Any) -> train.Result:
    return JaxTrainer(
        script,
        train_loop_config=config or {},
        scaling_config=ScalingConfig(num_workers=workers),
        run_config=RunConfig(verbose=0, log_to_driver=None, **run),
    ).fit()


def test_two_workers_learn_what_one_learns():
    one, two = fit(1), fit(2)
    assert (one.metrics["devices"], two.metrics["devices"]) == (1, 2)
    assert two.metrics["loss"] < 1e-4
    assert list(two.metrics_dataframe["loss"]) == pytest.approx(list(one.metrics_dataframe["loss"]), abs=1e-5)


def test_a_killed_worker_is_made_up_for(tmp_path: Path):
    undisturbed = fit(2)
    result = fit(2, {"dies": str(tmp_path / "mark")}, failure_config=FailureConfig(max_failures=1))
    assert [attempt.checkpoint for attempt in result.attempts] == [0, 10]
    assert list(result.metrics_dataframe["step"]) == list(range(40))
    assert result.metrics["loss"] == pytest.approx(undisturbed.metrics["loss"], abs=1e-6)


def test_mistakes_are_told():
    with pytest.raises(ValueError, match="cpu_collectives='nccl': choose 'gloo' or 'mpi'"):
        JaxConfig(cpu_collectives="nccl")
    with pytest.raises(ValueError, match="timeout_s=0"):
        JaxConfig(timeout_s=0)
