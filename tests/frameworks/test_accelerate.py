"""HuggingFace Accelerate: the body of a script with an Accelerator, unchanged, inside a TorchTrainer."""

from __future__ import annotations

from typing import Any

import pytest

from shoal import train
from shoal.train import RunConfig, ScalingConfig
from shoal.train.torch import TorchTrainer


def script(config: dict[str, Any]) -> None:
    import torch
    from accelerate import Accelerator
    from accelerate.utils import GradientAccumulationPlugin, set_seed

    accelerator = Accelerator(
        cpu=True, gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=config["accumulate"])
    )
    set_seed(1)
    inputs = torch.linspace(-1, 1, 64).unsqueeze(1)
    rows = torch.utils.data.TensorDataset(inputs, 3 * inputs + 1)
    loader = torch.utils.data.DataLoader(rows, batch_size=8, shuffle=True)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for _ in range(15):
        for features, targets in loader:
            with accelerator.accumulate(model):
                loss = torch.nn.functional.mse_loss(model(features), targets)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
        mean = accelerator.gather(loss.detach().reshape(1)).mean().item()
        train.report({"loss": mean, "processes": accelerator.num_processes, "kind": str(accelerator.distributed_type)})


@pytest.mark.parametrize("workers", [1, 2])
def test_an_unchanged_script_learns(workers: int):
    result = TorchTrainer(
        script,
        train_loop_config={"accumulate": 2},
        scaling_config=ScalingConfig(num_workers=workers),
        run_config=RunConfig(verbose=0, log_to_driver=None),
    ).fit()
    assert result.metrics["processes"] == workers
    assert result.metrics["loss"] < 1e-3
    assert result.metrics["kind"] == "DistributedType.MULTI_CPU"
