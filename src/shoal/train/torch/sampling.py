"""Which samples a rank gets: samplers and data sets that take a share of others.

Every rank draws the same order, since the inner sampler runs under the same seed on all of them, and takes every n-th
item. All ranks get the same number of items, or else the last collective of an epoch would wait for ever: a sampler's
items are repeated from the beginning to fill up, a stream's incomplete last round is left out.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Iterable, Iterator, Sized
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch.utils.data import IterableDataset, Sampler

from shoal._core.messages import Ranks

T = TypeVar("T")


class RankSampler(Sampler[T]):
    """Takes a rank's share of the items of a sampler, or of the batches of a batch sampler.

    Parameters
    ----------
    inner : iterable
        A sampler of the user's.
    ranks : Ranks
        Whose share.
    """

    def __init__(self, inner: Iterable[T], ranks: Ranks):
        self.inner = inner
        self.epoch = 0
        self._ranks = ranks
        self.batch_size = getattr(inner, "batch_size", None)
        self.drop_last = getattr(inner, "drop_last", False)

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of an epoch."""
        self.epoch = epoch
        if hasattr(self.inner, "set_epoch"):
            self.inner.set_epoch(epoch)

    def __iter__(self) -> Iterator[T]:
        items = drawn(self.inner, self.epoch)
        size = self._ranks.world_size
        missing = -len(items) % size
        while missing and items:
            filler = items[:missing]
            items += filler
            missing -= len(filler)
        return iter(items[self._ranks.world_rank :: size])

    def __len__(self) -> int:
        if not isinstance(self.inner, Sized):
            raise TypeError(f"{type(self.inner).__name__} has no length")
        return math.ceil(len(self.inner) / self._ranks.world_size)


class RankStream(IterableDataset[T]):
    """Takes a rank's share of a stream. Each rank reads the stream from its beginning and keeps every n-th item."""

    def __init__(self, inner: IterableDataset[T], ranks: Ranks):
        self.inner = inner
        self.epoch = 0
        self._ranks = ranks

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of an epoch, if the stream has one."""
        self.epoch = epoch
        if hasattr(self.inner, "set_epoch"):
            self.inner.set_epoch(epoch)

    def __iter__(self) -> Iterator[T]:
        round_: list[T] = []
        for item in self.inner:
            round_.append(item)
            if len(round_) == self._ranks.world_size:
                yield round_[self._ranks.world_rank]
                round_.clear()

    def __len__(self) -> int:
        return len(self.inner) // self._ranks.world_size  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "inner" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.__dict__["inner"], name)


def drawn(sampler: Iterable[T], epoch: int) -> list[T]:
    """Return what a sampler gives in an epoch: the same on every rank, and whenever it is asked again."""
    with same_randomness(epoch):
        generator = getattr(sampler, "generator", None)
        if isinstance(generator, torch.Generator):
            generator.manual_seed(epoch)
        return list(sampler)


@contextmanager
def same_randomness(seed: int) -> Iterator[None]:
    """Let all generators give the same numbers on every rank, and go on afterwards as if nothing had been drawn."""
    python_state = random.getstate()
    numpy = sys.modules.get("numpy")
    numpy_state = numpy.random.get_state() if numpy else None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        random.seed(seed)
        if numpy:
            numpy.random.seed(seed)
        try:
            yield
        finally:
            random.setstate(python_state)
            if numpy:
                numpy.random.set_state(numpy_state)
