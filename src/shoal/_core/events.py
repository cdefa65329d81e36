"""What can happen to a run. Frozen; each says which attempt it belongs to, so that an older one's are dropped."""

from __future__ import annotations

from typing import Any

import msgspec

from shoal._core.messages import ExitInfo, FromWorker
from shoal._core.records import DriverStarted


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """The root of every event."""


class Begin(Event, frozen=True, kw_only=True):
    """The first event of every run; ``wall`` is the time of day (seconds since the epoch) at that moment."""

    wall: float
    driver: DriverStarted = DriverStarted(host="", pid=0, version="")


class HostSlots(msgspec.Struct, frozen=True, kw_only=True):
    """Room for ``count`` workers on one host, whose name is not used again once it is lost.

    ``devices`` has each worker's accelerators, as ``device_variable`` lists them; it is empty where nothing hides any.
    """

    host: str
    hostname: str
    count: int
    devices: tuple[tuple[str, ...], ...] = ()
    device_variable: str = "CUDA_VISIBLE_DEVICES"


class Acquired(Event, frozen=True, kw_only=True):
    """The engine gave room for a whole group. ``ticket`` is the request's, set on the way to the run."""

    slots: tuple[HostSlots, ...]
    ticket: int = 0


class CapacityChanged(Event, frozen=True, kw_only=True):
    """There is room for so many workers of the run now, those that it has included."""

    workers: int
    ticket: int = 0


class Infeasible(Event, frozen=True, kw_only=True):
    """The engine can never give what was asked for."""

    reason: str


class Heard(Event, frozen=True, kw_only=True):
    """A worker said something."""

    attempt: int
    rank: int
    message: FromWorker


class Exited(Event, frozen=True, kw_only=True):
    """A worker's process is gone."""

    attempt: int
    rank: int
    exit: ExitInfo


class NativeStacksRead(Event, frozen=True, kw_only=True):
    """A host has looked at the native stacks of a worker; ``text`` is empty if it cannot."""

    attempt: int
    rank: int
    text: str


class HostLost(Event, frozen=True, kw_only=True):
    """A machine, or the host program on it, is gone with all its workers."""

    host: str
    reason: str


class EngineSays(Event, frozen=True, kw_only=True):
    """What people should know of the engine: that a run waits for room, and for what."""

    text: str
    level: str = "info"


class PreemptionNotice(Event, frozen=True, kw_only=True):
    """All workers of the run will be taken away in ``grace`` seconds, and the run goes on in another process.

    With a ``host``, only those on that host will be, and the run goes on without it.
    """

    reason: str
    grace: float
    host: str = ""


class CommitDone(Event, frozen=True, kw_only=True):
    """A checkpoint is visible under its final name."""

    n: int


class Inspected(Event, frozen=True, kw_only=True):
    """What is wrong with the checkpoint of report ``n``; nothing if ``damage`` is empty."""

    n: int
    damage: str = ""


class Validated(Event, frozen=True, kw_only=True):
    """What the validation of the checkpoint of report ``n`` has found, or why it has found nothing."""

    n: int
    metrics: dict[str, Any] = {}
    error: str = ""


class StorageFailed(Event, frozen=True, kw_only=True):
    """The run's own files could not be written."""

    reason: str


class StopAsked(Event, frozen=True, kw_only=True):
    """Somebody wants the run to stop: at the next report, at report ``at`` if that is given, or (``kill``) now."""

    reason: str
    kill: bool = False
    at: int | None = None


class StacksAsked(Event, frozen=True, kw_only=True):
    """Somebody wants to know what every rank is doing."""


class Decided(Event, frozen=True, kw_only=True):
    """Nothing follows from report ``n``: the function goes on."""

    n: int


class TimerFired(Event, frozen=True, kw_only=True):
    """A timer set by the run has come."""

    name: str
