"""DeepSpeed finds the process group of TorchTrainer; its ZeRO stages learn the same on CPUs."""

from __future__ import annotations

from typing import Any

import pytest

from shoal import train
from shoal.train import Checkpoint, FailureConfig, RunConfig, ScalingConfig
from shoal.train.torch import TorchTrainer

pytest.importorskip("deepspeed", reason="DeepSpeed is not installed here")


def script(config: dict[str, Any]) -> None:
    import deepspeed
    import torch

    torch.manual_seed(0)
    inputs = torch.linspace(-1, 1, 64).unsqueeze(1)
    targets = 3 * inputs + 1
    share = slice(train.get_context().get_world_rank(), None, train.get_context().get_world_size())
    model = torch.nn.Sequential(torch.nn.Linear(1, 1))
    settings = {
        "train_micro_batch_size_per_gpu": 32,
        "optimizer": {"type": "Adam", "params": {"lr": 0.2, "torch_adam": True}},
        "zero_optimization": config["zero"],
        "zero_force_ds_cpu_optimizer": False,
    }
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=settings)
    begin = 0
    if checkpoint := train.get_checkpoint():
        with checkpoint.as_directory() as directory:
            _, saved = engine.load_checkpoint(str(directory))
        begin = saved["step"] + 1
    for step in range(begin, 60):
        if step == 10 and begin == 0 and train.get_context().get_world_rank() == 1:
            raise RuntimeError("something broke")
        loss = torch.nn.functional.mse_loss(engine(inputs[share]), targets[share])
        engine.backward(loss)
        engine.step()
        metrics = {"loss": loss.item(), "step": step, "world": torch.distributed.get_world_size()}
        if step != 9:
            train.report(metrics)
            continue
        with train.checkpoint_dir() as directory:
            engine.save_checkpoint(str(directory), client_state={"step": step})
            train.report(metrics, checkpoint=Checkpoint.from_directory(directory), replicated=False)


@pytest.mark.parametrize(
    "zero",
    [{"stage": 0}, {"stage": 1}, {"stage": 2}, {"stage": 3}, {"stage": 2, "offload_optimizer": {"device": "cpu"}}],
    ids=["stage-0", "stage-1", "stage-2", "stage-3", "stage-2-offloaded"],
)
def test_a_stage_of_zero_learns_and_goes_on(zero: dict[str, Any]):
    result = TorchTrainer(
        script,
        train_loop_config={"zero": zero},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(verbose=0, log_to_driver=None, failure_config=FailureConfig(max_failures=1)),
    ).fit()
    assert [attempt.checkpoint for attempt in result.attempts] == [0, 10]
    assert list(result.metrics_dataframe["step"]) == list(range(60))
    assert result.metrics["world"] == 2
    assert result.metrics["loss"] < 1e-2
