"""Stores a worker's parts of checkpoints, one after the other, in a thread of its own.

A report waits for its part, or, in asynchronous mode, goes on while at most two parts are under way. What goes wrong is
raised by the report itself, or by the next one.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from shoal._core.errors import StorageError
from shoal._core.messages import Store, Stored
from shoal._worker import files

IN_FLIGHT = 2


@dataclass(frozen=True)
class Part:
    """What one report has to store: ``own`` files were written for this and are moved, others are copied."""

    n: int
    source: Path
    own: bool
    delete_source: bool


class Uploader:
    """Stores parts in the order in which the supervisor gives them out.

    Parameters
    ----------
    root : callable
        Returns the directory in which staging places lie.
    say : callable
        Sends a message to the supervisor.
    """

    def __init__(self, root: Callable[[], Path], say: Callable[[Stored], None]):
        self._root = root
        self._say = say
        self._room = threading.BoundedSemaphore(IN_FLIGHT)
        self._parts: dict[int, tuple[Part, Future[None]]] = {}
        self._last: Future[None] | None = None
        self._error: StorageError | None = None
        self._pool = ThreadPoolExecutor(1, "shoal-uploader")

    def expect(self, part: Part) -> Future[None]:
        """Take a part to store; its files are given out later. The future is done when the files are safe."""
        self._room.acquire()
        done: Future[None] = Future()
        self._parts[part.n] = (part, done)
        self._last = done
        return done

    def given_out(self, order: Store) -> None:
        """The supervisor has decided which files of a part this rank stores. Called in the link's thread."""
        part, done = self._parts.pop(order.n)
        self._pool.submit(self._store, part, order, done)

    def raise_earlier(self) -> None:
        """Raise what went wrong with a part that nobody waited for."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def finish(self) -> None:
        """Wait until every part is stored; raise what went wrong."""
        if self._last is not None:
            self._last.exception()  # one thread stores in order, so the last one is done last
            self._pool.submit(int).result()
        self.raise_earlier()

    def _store(self, part: Part, order: Store, done: Future[None]) -> None:
        target = self._root() / order.directory
        try:
            if part.own:
                entries = files.move(part.source, target, order.files)
                done.set_result(None)  # the files are where they belong; the digests are for later readers
                entries = files.with_digests(target, entries)
            else:
                entries = files.copy(part.source, target, order.files)
        except Exception as error:
            self._fail(part, done, error)
            return
        finally:
            self._room.release()
        if part.own or part.delete_source:
            shutil.rmtree(part.source, ignore_errors=True)
        self._say(Stored(n=part.n, files=entries))
        if not done.done():
            done.set_result(None)

    def _fail(self, part: Part, done: Future[None], error: Exception) -> None:
        reason = str(error)
        if isinstance(error, OSError):
            where = error.filename2 or error.filename or part.source
            reason = f"{error.strerror or error} ({where})"
        failure = StorageError(
            f"the checkpoint of report {part.n} could not be stored: {reason}. Earlier checkpoints are untouched"
        )
        failure.__cause__ = error
        self._say(Stored(n=part.n, files=[], error=reason))
        self._error = failure  # for the next report, unless this one waits and raises it
        if not done.done():
            done.set_exception(failure)
