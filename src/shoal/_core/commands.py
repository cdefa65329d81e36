"""What a run wants done. The supervisor carries these out in order and knows nothing of their reasons."""

from __future__ import annotations

from typing import Any

import msgspec

from shoal._core.failure import Failure
from shoal._core.messages import FileEntry, Ranks, ToWorker
from shoal._core.records import AnyRecord
from shoal._core.retention import CommittedCheckpoint
from shoal._core.states import RunState


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """The root of every command."""


class Acquire(Command, frozen=True, kw_only=True):
    """Ask the engine for room for a group of at least so many workers, in place of what was asked for before.

    ``ticket`` is in the answer: one to what was asked for before may be on its way still.
    """

    at_least: int
    ticket: int


class Release(Command, frozen=True, kw_only=True):
    """Give the room back."""


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """Where one worker runs."""

    host: str
    hostname: str
    ranks: Ranks
    devices: tuple[str, ...] = ()
    device_variable: str = "CUDA_VISIBLE_DEVICES"


class StartWorkers(Command, frozen=True, kw_only=True):
    """Start every worker of an attempt."""

    attempt: int
    workers: tuple[Placement, ...]


class SetUp(Command, frozen=True, kw_only=True):
    """Give a worker that said hello its task."""

    attempt: int
    ranks: Ranks
    checkpoint: str | None
    checkpoint_report: int


class Tell(Command, frozen=True, kw_only=True):
    """Send a message to one worker."""

    attempt: int
    rank: int
    message: ToWorker


class Kill(Command, frozen=True, kw_only=True):
    """End these workers now."""

    attempt: int
    ranks: tuple[int, ...]


class Persist(Command, frozen=True, kw_only=True):
    """Append a record to the journal before anything that follows is done."""

    record: AnyRecord


class WriteRow(Command, frozen=True, kw_only=True):
    """Append one report of rank 0 to the metrics. ``saved`` says whether it came with a checkpoint."""

    row: dict[str, Any]
    saved: bool = False


class Consult(Command, frozen=True, kw_only=True):
    """Rank 0 is about to report this: let it be decided what follows."""

    row: dict[str, Any]


class Commit(Command, frozen=True, kw_only=True):
    """Make a staged checkpoint visible, in one step, with its manifest."""

    n: int
    staging: str
    name: str
    files: tuple[FileEntry, ...]


class AddDigests(Command, frozen=True, kw_only=True):
    """Complete the manifest of a visible checkpoint with digests of files that it has without."""

    name: str
    files: tuple[FileEntry, ...]


class Inspect(Command, frozen=True, kw_only=True):
    """Look whether a committed checkpoint is sound, and answer with ``Inspected``. ``full`` reads every byte."""

    checkpoint: CommittedCheckpoint
    full: bool


class Discard(Command, frozen=True, kw_only=True):
    """Remove what an attempt has stored and not committed. ``keep`` are the names of committed checkpoints."""

    attempt: int
    keep: tuple[str, ...] = ()


class DeleteCheckpoint(Command, frozen=True, kw_only=True):
    """Remove a committed checkpoint that retention no longer keeps."""

    name: str


class Validate(Command, frozen=True, kw_only=True):
    """Score a committed checkpoint on workers of its own, and answer with ``Validated``."""

    n: int
    name: str
    task: dict[str, Any]


class SetTimer(Command, frozen=True, kw_only=True):
    """Send ``TimerFired(name)`` at the time ``at`` of the supervisor's clock; a timer of the same name is replaced."""

    name: str
    at: float


class DumpNativeStacks(Command, frozen=True, kw_only=True):
    """Ask the hosts for the native stacks of these processes, by rank."""

    attempt: int
    pids: dict[int, int]


class KeepStacks(Command, frozen=True, kw_only=True):
    """Keep the stacks of a rank in the run's directory, and (unless ``quiet``) show them."""

    attempt: int
    rank: int
    text: str
    quiet: bool = False


class Say(Command, frozen=True, kw_only=True):
    """Tell the person something that needs no action of the program."""

    text: str
    level: str = "info"


class Notify(Command, frozen=True, kw_only=True):
    """Tell callbacks and the display: the state of the run, and what of its workers changed."""

    state: RunState
    attempt: int
    workers: dict[int, str]


class Finish(Command, frozen=True, kw_only=True):
    """The run is over."""

    state: RunState
    failures: tuple[Failure, ...]
    reason: str
    value: bytes | None
