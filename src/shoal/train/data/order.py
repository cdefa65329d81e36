"""In which order the rows of an epoch are read: a function of seed, epoch and position, without a table of rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Places = NDArray[np.int64]
_ROUNDS = 4
_WORD = (1 << 64) - 1


class Order(Protocol):
    """Says which row is at a position of an epoch."""

    def rows(self, positions: Places) -> Places:
        """Return the rows at these positions."""


class InOrder:
    """Every row where it is."""

    def rows(self, positions: Places) -> Places:
        """Return the positions themselves."""
        return positions


class Permutation:
    """A permutation of ``count`` rows that computes each place by itself.

    A Feistel network over the next power of four, walked along until it is back among the rows: Black, Rogaway,
    *Ciphers with Arbitrary Finite Domains*, 2002. A data set of 10⁹ rows needs no more memory than one of ten.

    Examples
    --------
    >>> import numpy as np
    >>> order = Permutation(5, seed=1)
    >>> sorted(order.rows(np.arange(5)).tolist())
    [0, 1, 2, 3, 4]
    """

    def __init__(self, count: int, seed: int):
        self.count = count
        half = max(1, ((count - 1).bit_length() + 1) // 2)
        self._half = np.uint64(half)
        self._mask = np.uint64((1 << half) - 1)
        self._keys = [np.uint64(_mixed(seed * _ROUNDS + number + 1)) for number in range(_ROUNDS)]

    def rows(self, positions: Places) -> Places:
        """Return the rows at these positions."""
        places = self._once(positions.astype(np.uint64))
        outside = places >= self.count
        while outside.any():
            places[outside] = self._once(places[outside])
            outside = places >= self.count
        return places.astype(np.int64)

    def _once(self, places: NDArray[np.uint64]) -> NDArray[np.uint64]:
        left, right = places >> self._half, places & self._mask
        for key in self._keys:
            left, right = right, left ^ (_hash(right ^ key) & self._mask)
        joined: NDArray[np.uint64] = (left << self._half) | right
        return joined


class BlockPermutation:
    """A permutation of blocks, and of the rows in each: for files that are read block by block.

    Parameters
    ----------
    sizes : sequence of int
        How many rows each block has, in the order in which they are stored.
    """

    def __init__(self, sizes: Sequence[int], seed: int):
        counts = np.asarray(sizes, dtype=np.int64)
        self._starts = np.concatenate([[0], np.cumsum(counts)])
        self._blocks = Permutation(len(counts), seed).rows(np.arange(len(counts)))
        self._ends = np.cumsum(counts[self._blocks])
        self._counts, self._seed = counts, seed

    def rows(self, positions: Places) -> Places:
        """Return the rows at these positions."""
        nth = np.searchsorted(self._ends, positions, side="right")
        rows = np.empty_like(positions)
        for place in np.unique(nth):
            here = nth == place
            block = int(self._blocks[place])
            first = int(self._ends[place - 1]) if place else 0
            within = Permutation(int(self._counts[block]), self._seed * 2 + 1 + block)
            rows[here] = self._starts[block] + within.rows(positions[here] - first)
        return rows


def of_epoch(count: int, seed: int, epoch: int, blocks: Sequence[int] = ()) -> Order:
    """Return the shuffled order of an epoch; blocks by blocks where there are any."""
    drawn = _mixed((seed << 20) ^ epoch)
    return BlockPermutation(blocks, drawn) if len(blocks) else Permutation(count, drawn)


def rounds(position: int, count: int, batch_size: int, rank: int, world_size: int) -> Iterator[tuple[int, int, int]]:
    """Yield a rank's part of each round of an epoch: its first position, the one behind its last, and the round's end.

    A round is one batch for every rank, and the ranks take neighbouring positions. The last one is shared out evenly.

    Examples
    --------
    >>> list(rounds(0, 10, batch_size=2, rank=0, world_size=2)), list(rounds(4, 10, batch_size=2, rank=1, world_size=2))
    ([(0, 2, 4), (4, 6, 8), (8, 9, 10)], [(6, 8, 8), (9, 10, 10)])
    """
    while position < count:
        left = min(count - position, batch_size * world_size)
        share, more = divmod(left, world_size)
        first = position + rank * share + min(rank, more)
        position += left
        yield first, first + share + (rank < more), position


def _hash(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Mix 64 bits: the finalizer of Steele, Lea, Flood, *Fast Splittable Pseudorandom Number Generators*, 2014."""
    with np.errstate(over="ignore"):
        mixed = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def _mixed(value: int) -> int:
    one = np.array([(value * 0x9E3779B97F4A7C15) & _WORD], dtype=np.uint64)
    return int(_hash(one)[0])
