"""Work with storage, in order: at once where it is a disk, in a thread of its own where it may take long."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any


class Background:
    """Does what is given to it, one after the other, and what follows from each in the thread of the supervisor.

    Parameters
    ----------
    threaded : bool
        Whether there is a thread. If not, work and what follows are done before :meth:`do` returns.
    """

    def __init__(self, threaded: bool):
        self._pool = ThreadPoolExecutor(1, "shoal-storage") if threaded else None
        self._followed: deque[tuple[Future[Any], Callable[[Any], None]]] = deque()
        self.wake: Callable[[], None] = lambda: None

    @property
    def idle(self) -> bool:
        """Whether everything is done."""
        return not self._followed

    def do(self, work: Callable[[], Any], then: Callable[[Any], None] = lambda _: None) -> None:
        """Do this after all before it; ``then`` takes what it returns."""
        if self._pool is None:
            then(work())
            return
        future = self._pool.submit(work)
        self._followed.append((future, then))
        future.add_done_callback(lambda _: self.wake())

    def follow_up(self) -> None:
        """Do what follows from the work that is done. Called by the supervisor after it was woken."""
        while self._followed and self._followed[0][0].done():
            future, then = self._followed.popleft()
            then(future.result())

    def close(self) -> None:
        """Wait until all is done."""
        if self._pool is not None:
            self._pool.shutdown()
