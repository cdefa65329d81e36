"""Commands carried out in order, each only when all that was written down before it is durable."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from shoal._core import commands as do
from shoal._core import search
from shoal._runtime.rundir import RunFiles

RECORDS = (do.Persist, search.PersistSearch)


class Ordered:
    """What carries commands out: the driver of a run, or of an experiment.

    Parameters
    ----------
    files : RunFiles
        Where records are written.

    Attributes
    ----------
    deeds : mapping
        What each kind of command means. The class has it and not each driver: a table of bound methods makes a cycle
        of its driver, and a search has thousands of them for the garbage collector to find.
    """

    deeds: ClassVar[Mapping[type[do.Command], Callable[[Any, Any], None]]] = {}

    def __init__(self, files: RunFiles):
        self.files = files
        self._held: deque[do.Command] = deque()

    def urgent(self, command: do.Command, held: deque[do.Command]) -> bool:
        """Whether a command may overtake those that wait until the journal is durable."""
        raise NotImplementedError

    def carry_out(self, commands: list[do.Command]) -> None:
        """Carry these out as soon as they may be."""
        for command in commands:
            if self.urgent(command, self._held):
                self.deeds[type(command)](self, command)
            else:
                self._held.append(command)
        self.carry_on()

    def carry_on(self) -> None:
        """Carry out what may be by now."""
        while self._held and (self.files.durable or isinstance(self._held[0], RECORDS)):
            command = self._held.popleft()
            self.deeds[type(command)](self, command)

    def follow_up(self) -> None:
        """Go on with what has waited for storage."""
        self.files.follow_up()
        self.carry_on()
