"""What follows from a report: the function goes on, or leaves there."""

from __future__ import annotations

import threading


class Decisions:
    """What the supervisor has decided so far. Set in the link's thread, waited for in the function's.

    Attributes
    ----------
    stop_at : int or None
        The report at which the function is to leave.
    """

    def __init__(self) -> None:
        self.stop_at: int | None = None
        self._changed = threading.Condition()
        self._decided = 0
        self._released = False

    def stop(self, n: int) -> None:
        """The function is to leave at report ``n``."""
        with self._changed:
            self.stop_at = n
            self._changed.notify_all()

    def go_on(self, n: int) -> None:
        """Nothing follows from report ``n`` and those before it."""
        with self._changed:
            self._decided = max(self._decided, n)
            self._changed.notify_all()

    def release(self) -> None:
        """Nobody decides any more."""
        with self._changed:
            self._released = True
            self._changed.notify_all()

    def wait_for(self, n: int, seconds: float | None) -> bool:
        """Wait for what follows from report ``n``; return whether the function is to leave there."""
        with self._changed:
            self._changed.wait_for(lambda: self._decided >= n or self._stops(n) or self._released, seconds)
            return self._stops(n)

    def _stops(self, n: int) -> bool:
        return self.stop_at is not None and n >= self.stop_at
