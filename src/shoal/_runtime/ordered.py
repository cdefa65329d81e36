"""Commands carried out in order, each only when all that was written down before it is durable."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from shoal._core import commands as do
from shoal._core import search
from shoal._runtime.rundir import RunFiles

RECORDS = (do.Persist, search.PersistSearch)


class Ordered:
    """Carries commands out.

    Parameters
    ----------
    files : RunFiles
        Where records are written.
    deeds : mapping
        What each kind of command means.
    urgent : callable
        Says of a command, and those that wait, whether it may overtake them.
    """

    def __init__(
        self,
        files: RunFiles,
        deeds: Mapping[type[do.Command], Callable[[Any], None]],
        urgent: Callable[[do.Command, deque[do.Command]], bool] = lambda command, held: False,
    ):
        self._files = files
        self._deeds = deeds
        self._urgent = urgent
        self._held: deque[do.Command] = deque()

    def do(self, commands: list[do.Command]) -> None:
        """Carry these out as soon as they may be."""
        for command in commands:
            if self._urgent(command, self._held):
                self._deeds[type(command)](command)
            else:
                self._held.append(command)
        self.follow_up()

    def follow_up(self) -> None:
        """Carry out what may be by now."""
        while self._held and (self._files.durable or isinstance(self._held[0], RECORDS)):
            command = self._held.popleft()
            self._deeds[type(command)](command)
