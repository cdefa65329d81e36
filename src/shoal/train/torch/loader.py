"""A data loader made ready for many workers: each gets its share, on its device, in a new order each epoch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, SequentialSampler
from torch.utils.data.distributed import DistributedSampler

from shoal._core.messages import Ranks
from shoal._worker import session as sessions
from shoal.train.torch.device import get_device
from shoal.train.torch.sampling import RankSampler, RankStream

KEPT = (
    "num_workers",
    "collate_fn",
    "pin_memory",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "generator",
    "prefetch_factor",
    "persistent_workers",
    "pin_memory_device",
    "in_order",
)


def prepare_data_loader(
    data_loader: DataLoader[Any],
    add_dist_sampler: bool = True,
    move_to_device: bool = True,
    auto_transfer: bool = True,
    *,
    resumable: bool | None = None,
) -> DataLoader[Any]:
    """Return a data loader that gives each worker its share of the data, on its device.

    The loader's own settings are kept: batch size (of one worker), order (shuffled or not), collate function, workers,
    generator, pinned memory, ``drop_last``, batch sampler, prefetching. A sampler that is distributed already is left
    alone; any other one of the user's is shared out, as is an ``IterableDataset``. The order is a new one each epoch
    without a call of ``set_epoch``.

    All workers get the same number of samples: the last ones are filled up from the beginning, and an incomplete last
    round of an ``IterableDataset`` is left out.

    Parameters
    ----------
    data_loader : torch.utils.data.DataLoader
        The loader as for one worker.
    add_dist_sampler : bool
        Whether to share the data out.
    move_to_device : bool
        Whether batches are moved to the worker's device.
    auto_transfer : bool
        Whether the next batch is copied to a GPU while the current one is used. Needs ``pin_memory=True`` to help.
    resumable : bool, optional
        Whether the loader has ``state_dict()`` and ``load_state_dict()``: with its state in the checkpoint, a run goes
        on in the middle of an epoch, with the same or another number of workers, and sees each sample of the epoch
        exactly once. Nothing is filled up then; the last batches may be smaller. By default where the loader has a
        state of its own, as a ``StatefulDataLoader`` of torchdata has.

    Raises
    ------
    TypeError
        If it is no ``DataLoader``.
    ValueError
        If a stream, or a loader that makes no batches, is to be resumable.

    Examples
    --------
    >>> from shoal import train
    >>> def train_func():
    ...     loader = train.torch.prepare_data_loader(DataLoader(range(100), batch_size=10, shuffle=True))
    ...     for epoch in range(2):
    ...         for batch in loader:
    ...             ...
    """
    session = sessions.current("train.torch.prepare_data_loader()")
    if not isinstance(data_loader, DataLoader):
        raise TypeError(f"data_loader={data_loader!r} is a {type(data_loader).__name__}, not a torch DataLoader")
    ranks = session.ranks if add_dist_sampler else None
    device = get_device() if move_to_device else None
    if resumable or (resumable is None and hasattr(data_loader, "load_state_dict")):
        from shoal.train.torch.resumable import ResumableDataLoader

        return ResumableDataLoader(data_loader, ranks or _ALONE, device, auto_transfer)
    return PreparedDataLoader(data_loader, ranks, device, auto_transfer)


class PreparedDataLoader(DataLoader[Any]):
    """A loader of one worker's share; see :func:`prepare_data_loader`.

    Attributes
    ----------
    epoch : int
        The number of the next epoch, from 0. Set it with :meth:`set_epoch` to go on in a later one.
    """

    def __init__(self, loader: DataLoader[Any], ranks: Ranks | None, device: torch.device | None, overlap: bool):
        kept = {name: getattr(loader, name) for name in KEPT if hasattr(loader, name)}
        super().__init__(**kept, **self._sharing(loader, ranks))
        self.epoch = 0
        self._set_by_us: int | None = None
        self._device = device
        self._overlap = overlap
        self._wait = sessions.current("train.torch.prepare_data_loader()").data_wait

    def _sharing(self, loader: DataLoader[Any], ranks: Ranks | None) -> dict[str, Any]:
        """Return the settings of a loader that say which samples there are."""
        return _unshared(loader) if ranks is None or ranks.world_size == 1 else _shared(loader, ranks)

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of the next epoch; it goes on from there by itself."""
        self.epoch = epoch
        self._set_by_us = None

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        self._choose_order()
        batches: Iterator[Any] = super().__iter__()
        if self._device is not None and self._device.type == "cuda" and self._overlap:
            batches = _transferred_ahead(batches, self._device)
        elif self._device is not None:
            device = self._device
            batches = (to_device(batch, device) for batch in batches)
        return self._wait.timed(batches)

    def _choose_order(self) -> None:
        sources: tuple[Any, ...] = (self.sampler, self.batch_sampler, self.dataset)
        for source in sources:
            if not hasattr(source, "set_epoch"):
                continue
            # Somebody who calls sampler.set_epoch() himself knows better which epoch this is.
            theirs = getattr(source, "epoch", None)
            if self._set_by_us is not None and theirs is not None and theirs != self._set_by_us:
                self.epoch = theirs
            elif self._set_by_us is None and theirs:
                self.epoch = self.epoch or theirs
            source.set_epoch(self.epoch)
            break
        self._set_by_us = self.epoch
        self.epoch += 1


def _unshared(loader: DataLoader[Any]) -> dict[str, Any]:
    return {"dataset": loader.dataset, **_batching(loader, loader.sampler)}


def _shared(loader: DataLoader[Any], ranks: Ranks) -> dict[str, Any]:
    """Return the settings of a loader that say which samples there are, for one rank's share of them."""
    dataset: Any = loader.dataset
    if isinstance(dataset, IterableDataset):
        return {"dataset": RankStream(dataset, ranks), "batch_size": loader.batch_size, "drop_last": loader.drop_last}
    if groups_by_itself(loader.batch_sampler):
        batches: Any = loader.batch_sampler
        return {
            "dataset": dataset,
            "batch_sampler": batches if is_distributed(batches) else RankSampler(batches, ranks),
        }
    return {"dataset": dataset, **_batching(loader, _shared_sampler(loader, ranks))}


def _shared_sampler(loader: DataLoader[Any], ranks: Ranks) -> Any:
    sampler: Any = loader.sampler
    if is_distributed(sampler):
        return sampler
    plain_shuffle = (
        type(sampler) is RandomSampler and not sampler.replacement and sampler.num_samples == len(sampler.data_source)
    )
    if plain_shuffle or type(sampler) is SequentialSampler:
        dataset: Any = loader.dataset
        return DistributedSampler(
            dataset, num_replicas=ranks.world_size, rank=ranks.world_rank, shuffle=plain_shuffle, drop_last=False
        )
    return RankSampler(sampler, ranks)


def _batching(loader: DataLoader[Any], sampler: Any) -> dict[str, Any]:
    if isinstance(loader.dataset, IterableDataset):
        return {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
    if groups_by_itself(loader.batch_sampler):
        return {"batch_sampler": loader.batch_sampler}
    return {"batch_size": loader.batch_size, "drop_last": loader.drop_last, "sampler": sampler}


def groups_by_itself(batch_sampler: Any) -> bool:
    """Whether a batch sampler is the user's own, and not what a loader makes of its batch size."""
    of_a_loader = type(batch_sampler) is BatchSampler or type(batch_sampler).__module__.startswith("torchdata.")
    return batch_sampler is not None and not of_a_loader


def is_distributed(sampler: Any) -> bool:
    """Whether a sampler takes its rank's share by itself, or wraps one that does."""
    inner = getattr(sampler, "sampler", None)
    return isinstance(sampler, DistributedSampler) or (
        hasattr(sampler, "num_replicas") or (inner is not None and is_distributed(inner))
    )


def to_device(batch: Any, device: torch.device) -> Any:
    """Move every tensor in a batch, inside dicts, lists, tuples and whatever has a ``to()``."""
    if hasattr(batch, "to"):
        try:
            return batch.to(device, non_blocking=True)
        except TypeError:
            return batch.to(device)
    if isinstance(batch, Mapping):
        return type(batch)({key: to_device(value, device) for key, value in batch.items()})  # type: ignore[call-arg]
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(to_device(value, device) for value in batch))
    if isinstance(batch, (list, tuple)):
        return type(batch)(to_device(value, device) for value in batch)
    return batch


def _transferred_ahead(batches: Iterator[Any], device: torch.device) -> Iterator[Any]:
    """Copy each batch on a stream of its own while the one before it is used."""
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def fetch() -> Any:
        batch = next(batches, _END)
        if batch is _END:
            return _END
        with torch.cuda.stream(stream):
            return to_device(batch, device)

    ahead = fetch()
    while ahead is not _END:
        current = torch.cuda.current_stream(device)
        current.wait_stream(stream)
        batch = ahead
        _record(batch, current)
        ahead = fetch()
        yield batch


def _record(batch: Any, stream: torch.cuda.Stream) -> None:
    """Keep the memory of a batch until the stream that uses it is done, though another stream filled it."""
    if isinstance(batch, torch.Tensor):
        batch.record_stream(stream)
    elif isinstance(batch, Mapping):
        for value in batch.values():
            _record(value, stream)
    elif isinstance(batch, (list, tuple)):
        for value in batch:
            _record(value, stream)


_END = object()
_ALONE = Ranks(world_rank=0, world_size=1, local_rank=0, local_world_size=1, node_rank=0)
