"""Batches as tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset

from shoal._worker import session as sessions


def worker_device() -> torch.device:
    """Return the device of this worker; the CPU outside one."""
    from shoal.train.torch.device import get_device

    return get_device() if sessions.active() else torch.device("cpu")


def tensors(
    batch: Mapping[str, Any], dtypes: torch.dtype | Mapping[str, torch.dtype] | None, device: str | torch.device
) -> dict[str, torch.Tensor]:
    """Return a batch of arrays as tensors on a device.

    Raises
    ------
    TypeError
        If a column has no numbers.
    """
    found = {}
    for name, column in batch.items():
        array = np.asarray(column)
        if array.dtype == object or array.dtype.kind in "USMm":
            raise TypeError(
                f"the column {name!r} holds {_kind(array)}, of which no tensor is made: leave it out, "
                "or give collate_fn, which gets the arrays"
            )
        kind = dtypes.get(name) if isinstance(dtypes, Mapping) else dtypes
        writable = array if array.flags.writeable else array.copy()
        found[name] = torch.as_tensor(writable).to(device=device, dtype=kind, non_blocking=True)
    return found


def _kind(array: np.ndarray[Any, Any]) -> str:
    return type(array.flat[0]).__name__.rstrip("_")


def loader(epoch: Callable[[], Iterator[Any]]) -> DataLoader[Any]:
    """Return a loader each of whose iterations is an epoch, in batches as they come."""
    return DataLoader(_Epochs(epoch), batch_size=None)


class _Epochs(IterableDataset[Any]):
    def __init__(self, epoch: Callable[[], Iterator[Any]]):
        self._epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        return self._epoch()
