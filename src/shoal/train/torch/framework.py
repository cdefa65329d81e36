"""What is set up in a torch worker: threads, device, process group."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from datetime import timedelta
from typing import ClassVar

import msgspec

from shoal._core.contracts import Framework, WorkerSide


@dataclass(frozen=True)
class TorchConfig(Framework):
    """How the process group of a torch run is made.

    Parameters
    ----------
    backend : str, optional
        ``"gloo"``, ``"nccl"``, ``"cpu:gloo,cuda:nccl"`` and so on. By default gloo for what lies on a CPU, and for what
        lies on an accelerator its own: NCCL for CUDA and ROCm, XCCL for Intel's, HCCL for Huawei's.
    init_method : str
        ``"env"`` or ``"tcp"``. Both mean the same here: rank 0 makes the store on a port that the system gives it.
    timeout_s : float
        After how many seconds a collective that not every rank joins is an error.
    """

    backend: str | None = None
    init_method: str = "env"
    timeout_s: float = 1800

    # Without torch._dynamo loaded the first optimizer step of every worker takes 1.1 s (torch 2.13).
    preload: ClassVar[tuple[str, ...]] = (
        "torch",
        "torch.distributed",
        "torch._dynamo",
        "torch.utils.data.distributed",
        "shoal.train.context",
        "shoal.train.torch.amp",
        "shoal.train.torch.loader",
        "shoal.train.torch.model",
        # What a module of the user's imports when a worker imports it for its function.
        "shoal.train.torch.trainer",
        "shoal.train.result",
    )

    def __post_init__(self) -> None:
        if self.init_method not in {"env", "tcp"}:
            raise ValueError(f"init_method={self.init_method!r}: choose 'env' or 'tcp'")
        if not self.timeout_s > 0:
            raise ValueError(f"timeout_s={self.timeout_s!r}: give a number of seconds above 0")

    def start(self, worker: WorkerSide) -> None:
        """Make the process group over a store whose port rank 0 picks by binding it."""
        import torch
        import torch.distributed as dist
        from torch._C._distributed_c10d import TCPStore

        from shoal.train.torch.device import default_backend, get_device, use_device

        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
        device = get_device()
        if device.type != "cpu":
            use_device(device)
        if worker.address == "127.0.0.1":
            _use_loopback()
        if dist.is_initialized():
            return  # under a launcher, by the script itself or an earlier fit()
        ranks, timeout = worker.ranks, timedelta(seconds=self.timeout_s)
        store = None
        offer = b""
        if ranks.world_rank == 0:
            store = TCPStore(
                worker.address, 0, ranks.world_size, is_master=True, wait_for_workers=False, timeout=timeout
            )
            offer = msgspec.json.encode([worker.address, store.port])
        address, port = msgspec.json.decode(worker.gather("torch store", offer)[0], type=tuple[str, int])
        os.environ.update(MASTER_ADDR=address, MASTER_PORT=str(port))
        if store is None:
            store = TCPStore(address, port, ranks.world_size, is_master=False, timeout=timeout)
        dist.init_process_group(
            self.backend or default_backend(device),
            store=store,
            rank=ranks.world_rank,
            world_size=ranks.world_size,
            timeout=timeout,
        )


def _use_loopback() -> None:
    """Keep gloo off interfaces that the host's name happens to stand for, since all ranks are on this machine."""
    names = {name for _, name in socket.if_nameindex()}
    loopback = next((name for name in ("lo", "lo0") if name in names), None)
    if loopback:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)
