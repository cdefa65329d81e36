"""The device of a worker."""

from __future__ import annotations

import os

import torch

from shoal._worker import session as sessions


def get_devices() -> list[torch.device]:
    """Return the devices of this worker: its GPUs, or the CPU.

    Raises
    ------
    OutsideWorkerError
        If this is not a worker.
    """
    session = sessions.current("train.torch.get_device()")
    count = int(session.task.resources.get("GPU", 0))
    if count == 0 or not torch.cuda.is_available():
        return [torch.device("cpu")]
    # A host shows each worker its own GPUs alone; a launcher usually shows every rank all of them.
    visible = os.environ.get("HIP_VISIBLE_DEVICES" if torch.version.hip else "CUDA_VISIBLE_DEVICES")
    shared = visible is None or len(visible.split(",")) > count
    first = session.ranks.local_rank * count if shared else 0
    return [torch.device("cuda", first + index) for index in range(count)]


def get_device() -> torch.device:
    """Return the device of this worker, the first if there are several.

    Examples
    --------
    >>> from shoal import train
    >>> def train_func():
    ...     device = train.torch.get_device()
    """
    return get_devices()[0]
