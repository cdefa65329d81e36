"""How many workers a run with a range of workers may have, and when its group changes its size."""

from __future__ import annotations

import math

from shoal._core.commands import Acquire
from shoal._core.group import Group
from shoal._core.scaling import GroupRequest


class Room:
    """What is known of the room for a run.

    A group shrinks at once when its room does. It grows only at a new checkpoint, from which the larger group begins,
    and not more often than once in ``interval`` seconds.

    Attributes
    ----------
    granted : bool
        Whether the room that was asked for last has been given.
    ticket : int
        Which request for room counts; answers to earlier ones are stale.
    possible : int or None
        For how many workers there is room now, those of the group included; ``None`` as long as nobody has said.
    """

    def __init__(self, request: GroupRequest, interval: float):
        self._request = request
        self._interval = interval
        self._taken_at = -math.inf
        self.granted = False
        self.ticket = 0
        self.possible: int | None = None

    def ask(self, at_least: int) -> Acquire:
        """Ask for room anew; what was known of it is of no use any more."""
        self.granted = False
        self.possible = None
        self.ticket += 1
        return Acquire(at_least=at_least, ticket=self.ticket)

    def taken(self, now: float) -> None:
        """An attempt begins in the room that was granted."""
        self._taken_at = now

    def must_shrink(self, group: Group) -> bool:
        """Whether there is room for fewer workers than the group has."""
        elastic = self._request.min_workers < self._request.max_workers
        return elastic and self.possible is not None and self.possible < len(group.workers)

    def may_grow(self, group: Group, now: float) -> bool:
        """Whether there is room for more workers than the group has, and the last change is long enough ago."""
        wanted = min(self.possible or 0, self._request.max_workers)
        return wanted > len(group.workers) and now - self._taken_at >= self._interval
