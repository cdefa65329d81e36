"""A loop over batches with DDP, a checkpoint each epoch."""

import os
import tempfile

import ray
import ray.train
import ray.train.torch
import torch
from ray.train import Checkpoint, CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def train_func(config):
    inputs = torch.randn(256, 4)
    data = DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=32, shuffle=True)
    data = ray.train.torch.prepare_data_loader(data)
    model = ray.train.torch.prepare_model(nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"])
    start = 0
    checkpoint = ray.train.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as directory:
            state = torch.load(os.path.join(directory, "model.pt"))
            model.load_state_dict(state["model"])
            start = state["epoch"] + 1
    for epoch in range(start, config["epochs"]):
        if ray.train.get_context().get_world_size() > 1:
            data.sampler.set_epoch(epoch)
        for x, y in data:
            loss = nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with tempfile.TemporaryDirectory() as directory:
            checkpoint = None
            if ray.train.get_context().get_world_rank() == 0:
                torch.save({"model": model.state_dict(), "epoch": epoch}, os.path.join(directory, "model.pt"))
                checkpoint = Checkpoint.from_directory(directory)
            ray.train.report({"loss": loss.item(), "epoch": epoch}, checkpoint=checkpoint)


ray.init(ignore_reinit_error=True)
trainer = TorchTrainer(
    train_func,
    train_loop_config={"lr": 0.1, "epochs": 3},
    scaling_config=ScalingConfig(num_workers=2, use_gpu=False),
    run_config=RunConfig(
        checkpoint_config=CheckpointConfig(num_to_keep=1), failure_config=FailureConfig(max_failures=2)
    ),
)
result = trainer.fit()
assert result.metrics["epoch"] == 2 and result.checkpoint is not None
print("done", result.checkpoint.path)
ray.shutdown()
