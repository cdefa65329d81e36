"""Work with storage, in order: at once where it is a disk, in a thread of its own where it may take long."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any


class Background:
    """Does what is given to it, one after the other, and what follows from each in the thread of the supervisor.

    Parameters
    ----------
    threaded : bool
        Whether there is a thread. If not, work and what follows are done before :meth:`do` returns.
    """

    def __init__(self, threaded: bool):
        self._work: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._followed: deque[tuple[Future[Any], Callable[[Any], None]]] = deque()
        self._under_way: set[str] = set()
        self._thread: threading.Thread | None = None
        self.wake: Callable[[], None] = lambda: None
        if threaded:  # a daemon, so that storage that does not answer does not keep the program from ending
            self._thread = threading.Thread(target=self._run, name="shoal-storage", daemon=True)
            self._thread.start()

    def do(self, work: Callable[[], Any], then: Callable[[Any], None] = lambda _: None) -> None:
        """Do this after all before it; ``then`` takes what it returns."""
        if self._thread is None:
            then(work())
            return
        future: Future[Any] = Future()
        self._followed.append((future, then))
        self._work.put((future, work))

    def do_once(self, what: str, work: Callable[[], Any], then: Callable[[Any], None] = lambda _: None) -> None:
        """Do this in its turn, unless the same is waiting for its turn already.

        For what is asked for again and again: it never piles up, and other work does not keep it from its turn.
        """

        def done(result: Any) -> None:
            self._under_way.discard(what)
            then(result)

        if what not in self._under_way:
            self._under_way.add(what)
            self.do(work, done)

    def follow_up(self) -> None:
        """Do what follows from the work that is done. Called by the supervisor after it was woken."""
        while self._followed and self._followed[0][0].done():
            future, then = self._followed.popleft()
            then(future.result())

    def close(self, *, wait: bool = True) -> None:
        """Take no more work, and wait until all is done."""
        if self._thread is not None:
            self._work.put(None)
            if wait:
                self._thread.join()

    def _run(self) -> None:
        while (item := self._work.get()) is not None:
            future, work = item
            try:
                future.set_result(work())
            except BaseException as error:
                future.set_exception(error)
            self.wake()
