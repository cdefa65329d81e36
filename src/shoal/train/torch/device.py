"""The device of a worker."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch

from shoal._runtime.accelerators import ACCELERATORS, Accelerator
from shoal._worker import session as sessions


def get_devices() -> list[torch.device]:
    """Return the devices of this worker: its accelerators, or the CPU.

    Raises
    ------
    OutsideWorkerError
        If this is not a worker.
    """
    session = sessions.current("train.torch.get_device()")
    kind = worker_accelerator(session.task.resources)
    if kind is None:
        return [torch.device("cpu")]
    count = int(session.task.resources[kind.resource])
    # A host shows each worker its own devices alone; a launcher usually shows every rank all of them.
    visible = os.environ.get(kind.variable) if kind.variable else None
    shared = visible is None or len(visible.split(",")) > count
    first = session.ranks.local_rank * count if shared else 0
    return [torch.device(kind.torch_device, first + index) for index in range(count)]


def get_device() -> torch.device:
    """Return the device of this worker, the first if there are several.

    Examples
    --------
    >>> from shoal import train
    >>> def train_func():
    ...     device = train.torch.get_device()
    """
    return get_devices()[0]


def worker_accelerator(resources: Mapping[str, float]) -> Accelerator | None:
    """Return the kind of accelerator that a worker was given and torch can use, if there is one."""
    for kind in ACCELERATORS:
        if int(resources.get(kind.resource, 0)) and kind.torch_device and _available(kind):
            return kind
    return None


def use_device(device: torch.device) -> None:
    """Make it the current one of its kind, where the kind has a current one."""
    choose = getattr(_module(device.type), "set_device", None)
    if choose is not None:
        choose(device)


def default_backend(device: torch.device) -> str:
    """Return what exchanges tensors: the device's own for what lies on it, and gloo for what does not.

    Examples
    --------
    >>> default_backend(torch.device("cpu")), default_backend(torch.device("cuda", 0))
    ('gloo', 'cpu:gloo,cuda:nccl')
    """
    own = next((kind.backend for kind in ACCELERATORS if kind.torch_device == device.type), "gloo")
    return "gloo" if own == "gloo" else f"cpu:gloo,{device.type}:{own}"


def _available(kind: Accelerator) -> bool:
    if kind.torch_device == "cuda" and bool(torch.version.hip) != (kind.name == "ROCm"):
        return False
    module = _module(kind.torch_device)
    return bool(module is not None and module.is_available())


def _module(device_type: str) -> Any:
    """Return torch's module of a kind of device; ``None`` where this torch has none, as without ``torch_npu``."""
    if device_type == "mps":
        return torch.backends.mps
    return getattr(torch, device_type, None)
