"""The records of the journal, and the fold that makes a run's durable state of them again."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from shoal._core.failure import Failure
from shoal._core.messages import FileEntry
from shoal._core.retention import CommittedCheckpoint


class Record(msgspec.Struct, frozen=True, kw_only=True, tag_field="record", tag=True, omit_defaults=True):
    """The root of every record. ``at`` is the time of day in seconds since the epoch."""

    at: float = 0.0


class DriverStarted(Record, frozen=True, kw_only=True):
    """A driver took the run over. Its failure budget is whole again: a person has looked at the run in between."""

    host: str
    pid: int
    version: str
    changes: list[str] = []


class AttemptStarted(Record, frozen=True, kw_only=True):
    """A worker group is started from ``checkpoint`` (a report's number; 0 is the beginning)."""

    attempt: int
    world_size: int
    hosts: list[str]
    checkpoint: int = 0


class AttemptEnded(Record, frozen=True, kw_only=True):
    """The last worker of an attempt is gone."""

    attempt: int
    reason: str
    reports: int = 0
    failures: list[Failure] = []
    preempted: bool = False


class CheckpointCommitted(Record, frozen=True, kw_only=True):
    """A checkpoint is whole in its staging place and becomes visible. ``validation`` says how it is to be scored."""

    n: int
    attempt: int
    name: str
    staging: str
    metrics: dict[str, Any]
    files: list[FileEntry]
    validation: dict[str, Any] | None = None


class CheckpointValidated(Record, frozen=True, kw_only=True):
    """A checkpoint was scored, or could not be: ``metrics`` join its own."""

    n: int
    metrics: dict[str, Any] = {}
    error: str = ""


class CheckpointLost(Record, frozen=True, kw_only=True):
    """A committed checkpoint was found gone or damaged when it was to be used."""

    n: int
    name: str
    reason: str


class CheckpointDeleted(Record, frozen=True, kw_only=True):
    """Retention removes a checkpoint."""

    n: int
    name: str


class RunEnded(Record, frozen=True, kw_only=True):
    """The run is over."""

    state: str
    reason: str = ""


AnyRecord = (
    DriverStarted
    | AttemptStarted
    | AttemptEnded
    | CheckpointCommitted
    | CheckpointValidated
    | CheckpointLost
    | CheckpointDeleted
    | RunEnded
)


class Attempt(msgspec.Struct, kw_only=True):
    """One attempt in the history of a run: on which ``hosts``, and how many ``reports`` there were at its end."""

    number: int
    world_size: int
    started_at: float
    checkpoint: int
    ended_at: float | None = None
    reason: str = ""
    hosts: list[str] = []
    reports: int = 0


class History(msgspec.Struct, kw_only=True):
    """The durable state of a run: what its journal says happened.

    ``group_failures`` counts since a driver took over; ``causes`` are the root causes since the last new checkpoint.
    ``deleted`` has the names that retention let go of.
    """

    attempts: list[Attempt] = msgspec.field(default_factory=list)
    checkpoints: list[CommittedCheckpoint] = msgspec.field(default_factory=list)
    deleted: set[str] = msgspec.field(default_factory=set)
    failures: list[Failure] = msgspec.field(default_factory=list)
    group_failures: int = 0
    preemptions: int = 0
    causes: list[Failure] = msgspec.field(default_factory=list)
    ended: RunEnded | None = None

    def apply(self, record: AnyRecord) -> None:
        """Add one record."""
        match record:
            case DriverStarted():
                self.ended = None
                self.group_failures = self.preemptions = 0
                self.causes.clear()
            case AttemptStarted():
                self.attempts.append(
                    Attempt(
                        number=record.attempt,
                        world_size=record.world_size,
                        started_at=record.at,
                        checkpoint=record.checkpoint,
                        hosts=sorted(set(record.hosts)),
                    )
                )
            case AttemptEnded():
                self._end_attempt(record)
            case CheckpointCommitted():
                self.causes.clear()
                self.deleted.discard(record.name)
                # A directory that was reported again under the same name is the newer checkpoint's now.
                self.checkpoints = [c for c in self.checkpoints if c.n != record.n and c.name != record.name]
                self.checkpoints.append(
                    CommittedCheckpoint(
                        n=record.n,
                        name=record.name,
                        attempt=record.attempt,
                        metrics=record.metrics,
                        staging=record.staging,
                        files=record.files,
                        validation=record.validation,
                    )
                )
            case CheckpointValidated():
                self.checkpoints = [c.validated(record.metrics) if c.n == record.n else c for c in self.checkpoints]
            case CheckpointDeleted() | CheckpointLost():
                if isinstance(record, CheckpointDeleted):
                    self.deleted.add(record.name)
                self.checkpoints = [c for c in self.checkpoints if c.n != record.n]
            case RunEnded():
                self.ended = record

    def _end_attempt(self, record: AttemptEnded) -> None:
        self.failures.extend(record.failures)
        if record.preempted:
            self.preemptions += 1
        elif record.failures:
            self.group_failures += 1
            self.causes.append(record.failures[0])
        for attempt in self.attempts:
            if attempt.number == record.attempt:
                attempt.ended_at, attempt.reason, attempt.reports = record.at, record.reason, record.reports


def fold(records: Iterable[AnyRecord]) -> History:
    """Return the state that these records describe."""
    history = History()
    for record in records:
        history.apply(record)
    return history
