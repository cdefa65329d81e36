"""A data loader that goes on in the middle of an epoch, also with another number of workers."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, Sampler

from shoal._core.messages import Ranks
from shoal.train.data.order import rounds
from shoal.train.torch.loader import PreparedDataLoader, groups_by_itself
from shoal.train.torch.sampling import drawn


class ResumableDataLoader(PreparedDataLoader):
    """A loader of one worker's share that says where it stands, as plain data that is the same on all ranks.

    Where an epoch stands is one number, how many samples all ranks together have been given; its order is a function of
    the epoch. So whoever loads the state, with however many ranks, gets each sample that is left exactly once. Batches
    that worker processes have made ahead are not counted before they are handed out.
    """

    def __init__(self, loader: DataLoader[Any], ranks: Ranks, device: torch.device | None, overlap: bool):
        if isinstance(loader.dataset, IterableDataset):
            raise ValueError(
                f"resumable=True: {type(loader.dataset).__name__} is a stream, which has no positions to go on from; "
                "give it to the trainer with datasets={'train': ...}, or keep its own state in the checkpoint"
            )
        if loader.batch_sampler is None:
            raise ValueError("resumable=True: the loader has batch_size=None; give it the size of a batch")
        self._rounds = Rounds(loader, ranks)
        self._begun = False
        super().__init__(loader, ranks, device, overlap)

    def set_epoch(self, epoch: int) -> None:
        """Begin this epoch with the next iteration."""
        self.epoch, self._begun, self._rounds.position = epoch, False, 0

    def state_dict(self) -> dict[str, Any]:
        """Return where the loader stands."""
        return {"epoch": self.epoch, "position": self._rounds.position, "count": self._rounds.count}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where :meth:`state_dict` was taken.

        Raises
        ------
        ValueError
            If the data set has another number of samples (or its batch sampler of batches).
        """
        if state["count"] != self._rounds.count:
            raise ValueError(f"the state is of {state['count']} samples, but the loader has {self._rounds.count}")
        self.set_epoch(state["epoch"])
        self._rounds.position = state["position"]

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        if self._begun:
            self.set_epoch(self.epoch + 1)
        self._begun = True
        ends = iter(self._rounds.ends())
        for batch in super().__iter__():
            self._rounds.position = next(ends)
            yield batch
        self.set_epoch(self.epoch + 1)

    def _choose_order(self) -> None:
        self._rounds.set_epoch(self.epoch)

    def _sharing(self, loader: DataLoader[Any], ranks: Ranks | None) -> dict[str, Any]:
        return {"dataset": loader.dataset, "batch_sampler": self._rounds}


class Rounds(Sampler[Any]):
    """One rank's batches of what is left of an epoch, from a loader's sampler or from a batch sampler of the user's.

    Attributes
    ----------
    position : int
        How many samples (or batches of the user's) all ranks together have been given in this epoch.
    count : int
        How many there are.
    """

    def __init__(self, loader: DataLoader[Any], ranks: Ranks):
        batches: Any = loader.batch_sampler
        self._own_batches = groups_by_itself(batches)
        items: Any = batches if self._own_batches else loader.sampler
        self._items = items
        self._size: int = 1 if self._own_batches else batches.batch_size
        self._drop_last = False if self._own_batches else batches.drop_last
        self._ranks = ranks
        self._epoch = 0
        self.position = 0
        self.count = len(items)

    def set_epoch(self, epoch: int) -> None:
        """Choose the order."""
        self._epoch = epoch
        if hasattr(self._items, "set_epoch"):
            self._items.set_epoch(epoch)

    def ends(self) -> list[int]:
        """Return the position after each batch that is left."""
        return [end for _, _, end in self._left()]

    def __iter__(self) -> Iterator[Any]:
        items = drawn(self._items, self._epoch)
        for first, end, _ in self._left():
            yield items[first] if self._own_batches else items[first:end]

    def __len__(self) -> int:
        return len(self._left())

    def _left(self) -> list[tuple[int, int, int]]:
        size = self._ranks.world_size
        left = list(rounds(self.position, self.count, self._size, self._ranks.world_rank, size))
        rest = (self.count - self.position) % (self._size * size)
        if rest and (self._drop_last or rest < size):
            left.pop()
            if not self._drop_last:
                warnings.warn(
                    f"the last {rest} samples are left out of the epoch: there are {size} ranks, and one without a "
                    "batch would leave the others waiting",
                    stacklevel=3,
                )
        return left
