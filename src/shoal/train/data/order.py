"""In which order the rows of an epoch are read: a function of seed, epoch and position, without a table of rows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Places = NDArray[np.int64]
_ROUNDS = 4
_AT_ONCE = 8192  # rows: enough for the cost of a call to be lost among them, few enough for a processor's cache
_ODD, _OTHER_ODD, _HALF = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB), np.uint64(32)
_WORD = (1 << 64) - 1


class Order(Protocol):
    """Says which row is at a position of an epoch."""

    def rows(self, positions: Places) -> Places:
        """Return the rows at these positions."""


class Permutation:
    """A permutation of ``count`` rows that computes each place by itself.

    A generalized Feistel network: Black, Rogaway, *Ciphers with Arbitrary Finite Domains*, 2002. A place is a pair of
    numbers, each of which is moved on in turn by a hash of the other; the few pairs that are no row are walked along.
    A data set of 10⁹ rows needs no more memory than one of ten.

    Examples
    --------
    >>> import numpy as np
    >>> order = Permutation(5, seed=1)
    >>> sorted(order.rows(np.arange(5)).tolist())
    [0, 1, 2, 3, 4]
    """

    def __init__(self, count: int, seed: int):
        self.count = count
        self._left = np.uint64(math.isqrt(count - 1) + 1)
        self._right = np.uint64(-(-count // int(self._left)))
        self._keys = [np.uint64(_mixed(seed * _ROUNDS + number + 1)) for number in range(_ROUNDS)]

    def rows(self, positions: Places) -> Places:
        """Return the rows at these positions."""
        places = self._once(positions.astype(np.uint64))
        outside = np.flatnonzero(places >= self.count)
        while len(outside):
            places[outside] = self._once(places[outside])
            outside = outside[places[outside] >= self.count]
        return places.astype(np.int64)

    def _once(self, places: NDArray[np.uint64]) -> NDArray[np.uint64]:
        left = places // self._right
        right = places - left * self._right
        for number, key in enumerate(self._keys):
            if number % 2:
                _move(right, left, key, self._right)
            else:
                _move(left, right, key, self._left)
        left *= self._right
        left += right
        return left


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
        self.blocks = Permutation(len(counts), seed).rows(np.arange(len(counts)))
        self._ends = np.cumsum(counts[self.blocks])
        self._counts, self._seed = counts, seed

    def rows(self, positions: Places) -> Places:
        """Return the rows at these positions."""
        nth = np.searchsorted(self._ends, positions, side="right")
        rows = np.empty_like(positions)
        for place in np.unique(nth):
            here = nth == place
            block = int(self.blocks[place])
            first = int(self._ends[place - 1]) if place else 0
            within = Permutation(int(self._counts[block]), self._seed * 2 + 1 + block)
            rows[here] = self._starts[block] + within.rows(positions[here] - first)
        return rows


def of_epoch(count: int, seed: int, epoch: int, blocks: Sequence[int] = ()) -> Permutation | BlockPermutation:
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


def drawn(order: Order, spans: Iterable[tuple[int, int, int]]) -> Iterator[tuple[Places, int]]:
    """Yield the rows of spans of positions, with each span's third number; those of many spans are computed at once.

    Examples
    --------
    >>> [(rows.tolist(), end) for rows, end in drawn(Permutation(1, seed=0), [(0, 1, 1)])]
    [([0], 1)]
    """
    spans = iter(spans)
    while True:
        some, count = [], 0
        for span in spans:
            some.append(span)
            count += span[1] - span[0]
            if count >= _AT_ONCE:
                break
        if not some:
            return
        rows = order.rows(np.concatenate([np.arange(first, end) for first, end, _ in some]))
        for first, end, after in some:
            yield rows[: end - first], after
            rows = rows[end - first :]


def _move(moved: NDArray[np.uint64], by: NDArray[np.uint64], key: np.uint64, size: np.uint64) -> None:
    """Add to numbers below ``size`` a hash of other numbers, modulo ``size``, which is below 2³²."""
    with np.errstate(over="ignore"):
        mixed = by ^ key
        mixed *= _ODD
        mixed ^= mixed >> _HALF
        mixed *= _OTHER_ODD
        mixed >>= _HALF
        mixed *= size
        mixed >>= _HALF
    moved += mixed
    moved -= (moved >= size) * size


def _hash(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Mix 64 bits: the finalizer of Steele, Lea, Flood, *Fast Splittable Pseudorandom Number Generators*, 2014."""
    with np.errstate(over="ignore"):
        mixed = (values ^ (values >> np.uint64(30))) * _ODD
        mixed = (mixed ^ (mixed >> np.uint64(27))) * _OTHER_ODD
    return mixed ^ (mixed >> np.uint64(31))


def _mixed(value: int) -> int:
    one = np.array([(value * 0x9E3779B97F4A7C15) & _WORD], dtype=np.uint64)
    return int(_hash(one)[0])
