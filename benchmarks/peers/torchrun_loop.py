"""A DDP training loop; under torchrun it prints the steps a second of rank 0."""

import time

import torch
import torch.distributed as dist
from torch import nn


def loop(prepare_model, report, steps: int = 300) -> float:
    torch.manual_seed(0)
    model = prepare_model(
        nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch, labels = torch.randn(64, 256), torch.randint(0, 10, (64,))
    began = 0.0
    for step in range(steps + 30):
        if step == 30:
            dist.barrier()
            began = time.perf_counter()
        loss = nn.functional.cross_entropy(model(batch), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        report(step, loss.item())
    dist.barrier()
    return steps / (time.perf_counter() - began)


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    speed = loop(nn.parallel.DistributedDataParallel, lambda step, loss: None)
    if dist.get_rank() == 0:
        print(speed, flush=True)
