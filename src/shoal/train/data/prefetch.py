"""Making things ahead in a thread."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

T = TypeVar("T")
_END = object()
QUICK_S = 0.001  # what is made faster is handed over in groups: a switch of threads costs more than making it
GROUP = 16


def prefetched(items: Iterable[T], ahead: int) -> Iterator[T]:
    """Yield items that a thread makes, up to so many ahead; what making them raises is raised here in its turn.

    Items that take less than a millisecond each may be up to 16 ahead. The thread ends with the iteration, also where
    that is given up in the middle.
    """
    if ahead < 1:
        yield from items
        return
    made = _Buffer(ahead)
    thread = threading.Thread(target=_make, args=(items, made), name="shoal-prefetch", daemon=True)
    thread.start()
    try:
        while (item := made.get()) is not _END:
            if isinstance(item, _Raised):
                raise item.error
            yield item
    finally:
        made.close()
        thread.join(timeout=5.0)


class _Raised:
    def __init__(self, error: BaseException):
        self.error = error


def _make(items: Iterable[Any], made: _Buffer) -> None:
    last: Any = _END
    try:
        began = time.perf_counter()
        for item in items:
            if not made.put(item, quick=time.perf_counter() - began < QUICK_S):
                return
            began = time.perf_counter()
    except BaseException as error:
        last = _Raised(error)
    made.put(last, quick=False)


class _Buffer:
    """Items between two threads. One who finds none waits a millisecond for a group of them, then for a single one."""

    def __init__(self, ahead: int):
        self._ahead = ahead
        self._items: deque[Any] = deque()
        self._closed = self._hungry = False
        lock = threading.Lock()
        self._room, self._there = threading.Condition(lock), threading.Condition(lock)

    def put(self, item: Any, quick: bool) -> bool:
        """Add an item when there is room; return whether anybody still wants it."""
        limit = max(self._ahead, GROUP) if quick else self._ahead
        with self._room:
            while len(self._items) >= limit and not self._closed:
                self._room.wait()
            self._items.append(item)
            if self._hungry or not quick or len(self._items) >= GROUP:
                self._hungry = False
                self._there.notify()
            return not self._closed

    def get(self) -> Any:
        with self._there:
            if not self._items:
                self._there.wait(QUICK_S)
            while not self._items:
                self._hungry = True
                self._there.wait()
            item = self._items.popleft()
            if len(self._items) < max(self._ahead, GROUP // 2):
                self._room.notify()
        return item

    def close(self) -> None:
        with self._room:
            self._closed = True
            self._room.notify_all()
