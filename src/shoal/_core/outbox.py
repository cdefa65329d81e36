"""The commands that the handling of one event brings about, in order."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from shoal._core import commands as do
from shoal._core.messages import ToWorker
from shoal._core.records import AnyRecord, History, Record
from shoal._core.search import PersistSearch, Updated

R = TypeVar("R", bound=Record)


class Collected:
    """Collects commands, and knows the time of the event: ``now`` of a clock, and what makes the time of day of it."""

    def __init__(self) -> None:
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

    def say(self, text: str, level: str = "info") -> None:
        """Say something to the person."""
        self.emit(do.Say(text=text, level=level))

    def timer(self, name: str, seconds: float) -> None:
        """Have a timer fire after some seconds."""
        self.emit(do.SetTimer(name=name, at=self.now + seconds))

    def dated(self, record: R) -> R:
        """Return a record with the time of the event."""
        return msgspec.structs.replace(record, at=self.now + self.wall_offset)


class Outbox(Collected):
    """The commands of a run. Every record is applied to the history that it goes into."""

    def __init__(self, history: History):
        super().__init__()
        self.history = history

    def persist(self, record: AnyRecord) -> None:
        """Date a record, apply it, and have it written before anything that follows is done."""
        dated = self.dated(record)
        self.history.apply(dated)
        self.emit(do.Persist(record=dated))

    def tell(self, attempt: int, rank: int, message: ToWorker) -> None:
        """Say something to a worker."""
        self.emit(do.Tell(attempt=attempt, rank=rank, message=message))


class SearchOutbox(Collected):
    """The commands of an experiment.

    Attributes
    ----------
    replaying : bool
        Whether what happens is in the journal already, and is not to be written again.
    """

    def __init__(self) -> None:
        super().__init__()
        self.replaying = False

    def __len__(self) -> int:
        return len(self._commands)

    def persist(self, record: Record, before: int | None = None) -> None:
        """Date a record, and have it written before what follows is done; ``before`` a place if it is given."""
        if not self.replaying:
            place = len(self._commands) if before is None else before
            self._commands.insert(place, PersistSearch(record=self.dated(record)))

    def updated(self, trial_id: str, what: str) -> None:
        """Tell that something has become of a trial."""
        self.emit(Updated(trial_id=trial_id, what=what))
