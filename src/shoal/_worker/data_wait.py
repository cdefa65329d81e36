"""How long training waits for its data, measured where batches are handed to it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


class DataWait:
    """Two sums of seconds: waiting for the next batch, and using the one that is there.

    Several data sets of a worker may be measured by the same one.

    Examples
    --------
    >>> wait = DataWait()
    >>> list(wait.timed([1, 2])), wait.share() <= 1
    ([1, 2], True)
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waited = self._used = 0.0
        self._told = (0.0, 0.0)

    def timed(self, batches: Iterable[T]) -> Iterator[T]:
        """Yield batches, and take the time of both sides."""
        source = iter(batches)
        while True:
            asked = time.perf_counter()
            try:
                batch = next(source)
            except StopIteration:
                return
            given = time.perf_counter()
            yield batch
            self._add(given - asked, time.perf_counter() - given)

    def share(self) -> float:
        """Return the share of all the time so far, from 0 to 1, that was waiting."""
        return self._waited / (self._waited + self._used) if self._waited else 0.0

    def since_last(self) -> tuple[float, float] | None:
        """Return both sums since the last call; ``None`` where no batch was measured."""
        with self._lock:
            waited, used = self._waited - self._told[0], self._used - self._told[1]
            self._told = (self._waited, self._used)
        return (waited, used) if waited + used > 0 else None

    def _add(self, waited: float, used: float) -> None:
        with self._lock:
            self._waited += waited
            self._used += used
