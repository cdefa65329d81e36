"""The commands that the handling of one event brings about, in order."""

from __future__ import annotations

import msgspec

from shoal._core import commands as do
from shoal._core.messages import ToWorker
from shoal._core.records import AnyRecord, History


class Outbox:
    """Collects commands. Knows the time of the event, and applies every record to the history that it goes into."""

    def __init__(self, history: History):
        self.history = history
        self.now = 0.0
        self.wall_offset = 0.0
        self._commands: list[do.Command] = []

    def take(self) -> list[do.Command]:
        """Return what was collected, and begin anew."""
        commands, self._commands = self._commands, []
        return commands

    def emit(self, command: do.Command) -> None:
        """Add a command."""
        self._commands.append(command)

    def persist(self, record: AnyRecord) -> None:
        """Date a record, apply it, and have it written before anything that follows is done."""
        dated = msgspec.structs.replace(record, at=self.now + self.wall_offset)
        self.history.apply(dated)
        self.emit(do.Persist(record=dated))

    def tell(self, attempt: int, rank: int, message: ToWorker) -> None:
        """Say something to a worker."""
        self.emit(do.Tell(attempt=attempt, rank=rank, message=message))

    def say(self, text: str, level: str = "info") -> None:
        """Say something to the person."""
        self.emit(do.Say(text=text, level=level))

    def timer(self, name: str, seconds: float) -> None:
        """Have a timer fire after some seconds."""
        self.emit(do.SetTimer(name=name, at=self.now + seconds))
