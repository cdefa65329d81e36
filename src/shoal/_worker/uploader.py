"""Stores a worker's parts of checkpoints, one after the other, in a thread of its own.

A report waits until its part is kept: stored, and known to the supervisor. In asynchronous mode it goes on while at
most two parts are under way. What goes wrong is raised by the report itself, or by the next one.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shoal._core.errors import StorageError
from shoal._core.messages import Digests, FileEntry, Store, Stored
from shoal._worker import files
from shoal._worker.remote import Remote

IN_FLIGHT = 2
AT_ONCE = 4 << 20  # bytes whose digest takes less time than saying it later


@dataclass(frozen=True)
class Part:
    """What one report has to store: ``own`` files were written for this and are moved, others are copied.

    ``store`` is the user's own way of storing it; it returns where.
    """

    n: int
    source: Path | None
    own: bool = False
    delete_source: bool = False
    store: Callable[[], str] | None = None
    kept: Future[None] = field(default_factory=Future)


class Uploader:
    """Stores parts in the order in which the supervisor gives them out.

    Parameters
    ----------
    root : callable
        Returns the directory in which the places of checkpoints lie.
    say : callable
        Sends a message to the supervisor.
    """

    def __init__(self, root: Callable[[], Path | Remote], say: Callable[[Stored | Digests], None]):
        self._root = root
        self._say = say
        self._room = threading.BoundedSemaphore(IN_FLIGHT)
        self._lock = threading.Lock()
        self._parts: dict[int, Part] = {}
        self._error: StorageError | None = None
        self._pool = ThreadPoolExecutor(1, "shoal-uploader")
        self._idle = True  # nothing was ever given to the pool, which has no thread yet

    def expect(self, part: Part) -> None:
        """Take a part to store; its files are given out later. Waits while two earlier ones are under way."""
        self._room.acquire()
        with self._lock:
            self._parts[part.n] = part

    def given_out(self, order: Store) -> None:
        """The supervisor has decided which files of a part this rank stores. Called in the link's thread."""
        part = self._parts.get(order.n)
        if part is not None:
            self._submit(self._store, part, order)

    def kept(self, n: int) -> None:
        """A part cannot be lost any more. Called in the link's thread."""
        self._settle(n, None)

    def raise_earlier(self) -> None:
        """Raise what went wrong with a part that nobody waited for."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def finish(self) -> None:
        """Wait until every part is kept; raise what went wrong."""
        for part in list(self._parts.values()):
            part.kept.exception()
        if not self._idle:
            self._pool.submit(int).result()  # digests, and what is to be removed
        self.raise_earlier()

    def abandon(self) -> None:
        """The supervisor is gone: nobody will say any more that a part is kept."""
        for part in list(self._parts.values()):
            self._settle(part.n, StorageError(f"the supervisor ended before it had the checkpoint of report {part.n}"))

    def _submit(self, work: Callable[..., None], *arguments: Any) -> None:
        self._idle = False
        self._pool.submit(work, *arguments)

    def _store(self, part: Part, order: Store) -> None:
        target = self._root() / order.directory
        try:
            if part.store is not None:
                self._say(Stored(n=part.n, files=[], place=part.store()))
            elif part.source is None or not order.files:
                self._say(Stored(n=part.n, files=[]))
            elif isinstance(target, Remote):
                self._say(Stored(n=part.n, files=target.put(part.source, order.files)))
            else:
                place = files.move if part.own else files.copy
                self._say_stored(part.n, target, place(part.source, target, order.files))
        except Exception as error:
            self._fail(part, error)

    def _say_stored(self, n: int, target: Path, entries: list[FileEntry]) -> None:
        """Say that files are stored; the digests of large ones, which are for later readers, keep nobody waiting."""
        directory = os.open(target, os.O_RDONLY | os.O_DIRECTORY)  # it gets its name while digests are computed
        try:
            if sum(entry.size for entry in entries) <= AT_ONCE:
                self._say(Stored(n=n, files=files.with_digests(directory, entries)))
                return
            self._say(Stored(n=n, files=entries))
            with contextlib.suppress(FileNotFoundError):  # retention may have removed the checkpoint by now
                self._say(Digests(n=n, files=files.with_digests(directory, entries)))
        finally:
            os.close(directory)

    def _settle(self, n: int, error: StorageError | None) -> None:
        """A part is done with, well or not."""
        with self._lock:
            part = self._parts.pop(n, None)
        if part is None:
            return
        self._room.release()
        if error is not None:
            part.kept.set_exception(error)
            return
        if part.source is not None and (part.own or part.delete_source):
            self._submit(shutil.rmtree, part.source, True)
        part.kept.set_result(None)

    def _fail(self, part: Part, error: Exception) -> None:
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
        self._settle(part.n, failure)
