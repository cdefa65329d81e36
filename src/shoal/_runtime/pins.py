"""Checkpoints of trials that other trials go on from: kept for as long as somebody does or is going to."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from shoal._core.messages import FileEntry
from shoal._core.records import History
from shoal._core.retention import CommittedCheckpoint
from shoal._runtime.storage import Storage


class Pin(NamedTuple):
    """One checkpoint of an experiment: the directory of its trial, and its name there."""

    owner: str
    name: str

    @property
    def place(self) -> str:
        """Its path from the checkpoints of any trial of the experiment."""
        return f"../../{self.owner}/checkpoints/{self.name}"


def adopted(name: str) -> Pin | None:
    """Return which checkpoint of another trial a trial's checkpoint of this name is, if it is one."""
    if not name.startswith("../../"):
        return None
    owner, _, checkpoint = name.removeprefix("../../").partition("/checkpoints/")
    return Pin(owner, checkpoint)


def pin_of(owner: str, checkpoint: CommittedCheckpoint) -> Pin:
    """Return where a checkpoint that a trial has is: with that trial, or with the one that it has it from."""
    return adopted(checkpoint.name) or Pin(owner, checkpoint.name)


class Pins:
    """What trials go on from that belongs to others, and is not deleted under them. Threads may share it."""

    def __init__(self) -> None:
        self._wanted: dict[str, set[Pin]] = {}
        self._reserved: dict[str, Pin] = {}
        self._deferred: dict[Pin, Callable[[], None]] = {}
        self._lock = threading.Lock()

    def reserve(self, adopter: str, pin: Pin) -> None:
        """A trial is going to go on from this checkpoint: keep it until it has."""
        with self._lock:
            self._reserved[adopter] = pin
        self._delete_unwanted()

    def release(self, adopter: str) -> None:
        """A trial has gone on, or does not."""
        with self._lock:
            self._reserved.pop(adopter, None)
        self._delete_unwanted()

    def look(self, adopter: str, history: History) -> None:
        """Take note of what a trial wants of others, and delete what it was the last to want."""
        wanted = {pin for c in history.checkpoints if (pin := adopted(c.name))}
        with self._lock:
            if wanted:
                self._wanted[adopter] = wanted
            else:
                self._wanted.pop(adopter, None)
        self._delete_unwanted()

    def delete(self, pin: Pin, delete: Callable[[], None]) -> None:
        """Delete a checkpoint as soon as nobody wants it."""
        with self._lock:
            self._deferred[pin] = delete
        self._delete_unwanted()

    def _delete_unwanted(self) -> None:
        if not self._deferred:
            return
        with self._lock:
            unwanted = [self._deferred.pop(pin) for pin in list(self._deferred) if not self._held(pin)]
        for delete in unwanted:
            delete()

    def _held(self, pin: Pin) -> bool:
        return pin in self._reserved.values() or any(pin in wanted for wanted in self._wanted.values())


@dataclass
class PinnedStorage:
    """The checkpoints of a trial, of which none is deleted that another trial goes on from."""

    inner: Storage
    owner: str
    pins: Pins
    renames: bool

    def commit(self, staging: str, name: str, n: int, files: Sequence[FileEntry]) -> str:
        return self.inner.commit(staging, name, n, files)

    def add_digests(self, name: str, files: Sequence[FileEntry]) -> None:
        self.inner.add_digests(name, files)

    def inspect(self, checkpoint: CommittedCheckpoint, *, full: bool) -> str:
        return self.inner.inspect(checkpoint, full=full)

    def discard(self, attempt: int, keep: Any) -> None:
        self.inner.discard(attempt, keep)

    def delete(self, name: str) -> None:
        self.pins.delete(Pin(self.owner, name), partial(self.inner.delete, name))
