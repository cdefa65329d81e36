"""Who drives a run: a lease file with a heartbeat, so that no two drivers ever write to one run."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import psutil

from shoal._core.errors import RunExists
from shoal._runtime.files import write_json


class Lease(Protocol):
    """The right to drive a run, which lasts as long as its heart beats."""

    interval: float  # seconds between two beats; 0 for none
    token: str  # by which its holder is known

    def beat(self) -> None:
        """Show that this driver lives; raise ``OSError`` where that cannot be shown, or another one has taken over."""

    def release(self) -> None:
        """Give the right up."""


LEASE = "lease.json"
BEAT = 2.0  # seconds between two heartbeats
STALE = 15.0  # seconds without one after which the driver counts as dead, where it cannot be looked at


class LocalLease:
    """The right to drive the run in a directory of this machine, or of a disk that machines share.

    Raises
    ------
    RunExists
        If another driver holds it and lives.
    """

    interval = BEAT

    def __init__(self, directory: Path):
        self._directory = directory
        self.token = secrets.token_hex(8)
        with self._alone():
            holder = holder_of(directory)
            if holder and alive(holder):
                raise taken(str(directory), holder)
            self._write()

    def beat(self) -> None:
        """Show that this driver lives."""
        with self._alone():
            holder = holder_of(self._directory)
            if holder and holder.get("token") != self.token:  # this machine slept, say
                raise taken_over(holder)
            self._write()

    def release(self) -> None:
        """Give the right up."""
        if (holder_of(self._directory) or {}).get("token") == self.token:
            (self._directory / LEASE).unlink(missing_ok=True)

    def _write(self) -> None:
        write_json(self._directory / LEASE, holder_now(self.token))

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Let one driver at a time look at the lease and write it. The kernel lets go of the lock of one that dies."""
        with open(self._directory / ".lease.lock", "a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


class Unneeded:
    """The right to drive a trial, which whoever drives its experiment has."""

    interval = 0.0
    token = ""

    def beat(self) -> None:
        """Show nothing: the experiment's lease does."""

    def release(self) -> None:
        """Give nothing up."""


def holder_now(token: str) -> dict[str, object]:
    """Return what a lease says of the driver that holds it: this process, living now."""
    return {
        "token": token,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "began": psutil.Process().create_time(),
        "beat": time.time(),
    }


def taken(place: str, holder: dict[str, object]) -> RunExists:
    """Return the error for a run that another driver drives."""
    return RunExists(
        f"the run in {place} is being driven by process {holder['pid']} on {holder['host']}. Stop that one first, or "
        "choose another name"
    )


def taken_over(holder: dict[str, object]) -> OSError:
    """Return the error of a driver whose run another one drives by now."""
    return OSError(
        f"the run was taken over by process {holder.get('pid')} on {holder.get('host')}, since this driver's heartbeat "
        "had not been seen for too long"
    )


def holder_of(directory: Path) -> dict[str, object] | None:
    """Return who holds the lease of a run, or held it when it died."""
    try:
        return dict(json.loads((directory / LEASE).read_text()))
    except (OSError, ValueError):
        return None


def alive(holder: dict[str, object]) -> bool:
    """On this machine the process itself is looked at; elsewhere its last heartbeat."""
    if holder.get("host") == socket.gethostname():
        try:
            return abs(psutil.Process(int(str(holder["pid"]))).create_time() - float(str(holder["began"]))) < 1.0
        except (psutil.NoSuchProcess, KeyError, ValueError):
            return False
    return time.time() - float(str(holder.get("beat", 0.0))) < STALE
