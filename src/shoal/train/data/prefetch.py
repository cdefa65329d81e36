"""Making things ahead in a thread."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

T = TypeVar("T")
_END = object()


def prefetched(items: Iterable[T], ahead: int) -> Iterator[T]:
    """Yield items that a thread makes, up to so many ahead; what making them raises is raised here in its turn.

    The thread ends with the iteration, also where that is given up in the middle.
    """
    if ahead < 1:
        yield from items
        return
    made: queue.Queue[Any] = queue.Queue(ahead)
    over = threading.Event()
    thread = threading.Thread(target=_make, args=(items, made, over), name="shoal-prefetch", daemon=True)
    thread.start()
    try:
        while (item := made.get()) is not _END:
            if isinstance(item, _Raised):
                raise item.error
            yield item
    finally:
        over.set()
        with contextlib.suppress(queue.Empty):  # it may wait for room
            while True:
                made.get_nowait()
        thread.join(timeout=5.0)


class _Raised:
    def __init__(self, error: BaseException):
        self.error = error


def _make(items: Iterable[Any], made: queue.Queue[Any], over: threading.Event) -> None:
    try:
        for item in items:
            if over.is_set():
                return
            _put(made, item, over)
        _put(made, _END, over)
    except BaseException as error:
        _put(made, _Raised(error), over)


def _put(made: queue.Queue[Any], item: Any, over: threading.Event) -> None:
    while not over.is_set():
        with contextlib.suppress(queue.Full):
            made.put(item, timeout=0.1)
            return
