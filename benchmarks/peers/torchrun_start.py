"""Under torchrun: prints when rank 0 has made three DDP steps."""

import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(10, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(3):
    model(torch.randn(4, 10)).sum().backward()
    optimizer.step()
if dist.get_rank() == 0:
    print(time.time(), flush=True)
dist.barrier()
