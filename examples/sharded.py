"""Train a model that is sharded over its workers (FSDP2), save a checkpoint of shards, go on with other workers.

Each worker writes its own shards of model and optimizer with ``torch.distributed.checkpoint``, straight into the place
where checkpoints are kept. The second run reads them back into another number of workers.
"""

from __future__ import annotations

import sys

import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from shoal import train
from shoal.train import Checkpoint, Result, RunConfig, ScalingConfig
from shoal.train.torch import TorchTrainer


def save(model: nn.Module, optimizer: torch.optim.Optimizer, metrics: dict) -> None:
    model_state, optimizer_state = get_state_dict(model, optimizer)
    with train.checkpoint_dir() as directory:
        dcp.save({"model": model_state, "optimizer": optimizer_state}, checkpoint_id=directory)
        train.report(metrics, checkpoint=Checkpoint.from_directory(directory), replicated=False)


def load(model: nn.Module, optimizer: torch.optim.Optimizer, checkpoint: Checkpoint) -> None:
    model_state, optimizer_state = get_state_dict(model, optimizer)
    state = {"model": model_state, "optimizer": optimizer_state}
    with checkpoint.as_directory() as directory:
        dcp.load(state, checkpoint_id=directory)
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])


def train_func(config: dict) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 1))
    model = train.torch.prepare_model(model, parallel_strategy="fsdp")
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    checkpoint = train.get_checkpoint()
    if checkpoint:
        load(model, optimizer, checkpoint)
    features = torch.randn(256, 8, generator=torch.Generator().manual_seed(1))
    target = features.sum(1, keepdim=True)
    for _ in range(config["steps"]):
        loss = nn.functional.mse_loss(model(features), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        final = nn.functional.mse_loss(model(features), target).item()
    workers = train.get_context().get_world_size()
    save(model, optimizer, {"first_loss": loss.item() if config["steps"] else final, "loss": final, "workers": workers})


def fit(workers: int, steps: int, start: Checkpoint | None = None) -> Result:
    return TorchTrainer(
        train_func,
        train_loop_config={"steps": steps},
        scaling_config=ScalingConfig(num_workers=workers),
        run_config=RunConfig(verbose=0),
        resume_from_checkpoint=start,
    ).fit()


def main(first: int = 2, second: int = 1, steps: int = 30) -> tuple[Result, Result]:
    before = fit(first, steps)
    after = fit(second, steps, before.checkpoint)
    return before, after


if __name__ == "__main__":
    sizes = [int(size) for size in sys.argv[1:3]]
    before, after = main(*sizes)
    print(f"{before.metrics['workers']} workers: loss {before.metrics['loss']:.4f}")
    print(f"{after.metrics['workers']} workers: loss {after.metrics['loss']:.4f}")
    print("checkpoint:", after.checkpoint)
