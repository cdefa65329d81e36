"""What a driver does for people who look at its run from outside: it says how the run is, and does what they ask.

They ask by writing a small file into the run's ``control`` directory, from any machine that can write there; the driver
looks at each heartbeat of its lease. On its own machine they also ring a bell, and it looks at once.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import secrets
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from shoal._core import events as on
from shoal._runtime.files import write_json
from shoal._worker.remote import Remote, content, names_in

if TYPE_CHECKING:
    from shoal._runtime.rundir import RunFiles
    from shoal._runtime.supervisor import Supervisor

CONTROL, STATUS = "control", "status.json"
ASKS = ("stop", "kill", "stacks")
OFTEN, RARELY = (
    0.5,
    10.0,
)  # seconds between two times that it is written down how the run is, of few workers and of many
MANY = 512


class Attended(Protocol):
    """A driver, as people outside see it."""

    def handle(self, event: on.Event) -> None:
        """Take an event."""

    def status(self) -> dict[str, Any]:
        """Return how the run is, as plain data."""


class Bell:
    """Wakes the driver that holds a lease, from another process of its machine. Where there is none, it is silent."""

    def __init__(self, token: str, wake: Callable[[], None]):
        self._wake = wake
        self._socket: socket.socket | None = None
        if sys.platform == "linux":
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
            self._socket.bind(_bell(token))

    @property
    def descriptor(self) -> int | None:
        """What to wait for; ``None`` where there is no bell."""
        return self._socket.fileno() if self._socket is not None else None

    def rung(self) -> None:
        """Take note that it was rung."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                while self._socket.recv(16):
                    pass
        self._wake()

    def close(self) -> None:
        """Take it away."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def ring(token: str) -> None:
    """Wake the driver that holds this lease, if it is on this machine."""
    if sys.platform != "linux" or not token:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bell, contextlib.suppress(OSError):
        bell.sendto(b"!", _bell(token))


def _bell(token: str) -> str:
    return f"\0shoal-{token}"  # an abstract name: no file is left behind


def ask(place: Path | Remote, what: str, token: str = "") -> None:
    """Ask the driver of the run at a place for something: one of :data:`ASKS`.

    Raises
    ------
    OSError
        If the directory cannot be written to.
    """
    request = json.dumps({"ask": what, "by": f"{_user()}@{socket.gethostname()}", "at": time.time()}).encode()
    name = f"{time.time_ns()}-{secrets.token_hex(3)}.json"
    if isinstance(place, Remote):
        (place / CONTROL / name).write(request)
    else:
        (place / CONTROL).mkdir(exist_ok=True)
        hidden = place / CONTROL / f".{name}"
        hidden.write_bytes(request)
        os.replace(hidden, place / CONTROL / name)
    ring(token)


def requests(place: Path | Remote) -> list[dict[str, Any]]:
    """Take what was asked of the run at a place, the oldest first. What cannot be read now is left for later."""
    directory = place / CONTROL
    taken = []
    with contextlib.suppress(OSError):
        for name in names_in(directory):
            if name.startswith("."):  # it is being written
                continue
            file = directory / name
            request = content(file)
            if isinstance(file, Remote):
                file.delete()
            else:
                file.unlink()
            with contextlib.suppress(ValueError, TypeError):
                taken.append(dict(json.loads(request)))
    return taken


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container whose user has no name
        return str(os.getuid())


class Attendance:
    """Attends to people who look at a run from outside, from the loop of its supervisor, for as long as it is driven.

    Parameters
    ----------
    files : RunFiles
        The files of the run or of the search.
    driver : Attended
        What drives it.
    supervisor : Supervisor
        Its loop.
    """

    def __init__(self, files: RunFiles, driver: Attended, supervisor: Supervisor):
        self._files, self._driver, self._supervisor = files, driver, supervisor
        self._told_at = -RARELY
        self._workers = 0
        self._bell = Bell(files.lease.token, self.look)
        if self._bell.descriptor is not None:
            supervisor.watch(self._bell.descriptor, self._bell.rung)

    def look(self) -> None:
        """Do what was asked since the last time."""
        self._files.take_requests(self._do)

    def tell(self, at_once: bool = False) -> None:
        """Write down how the run is, if that has not just been done."""
        now = time.monotonic()
        if not at_once and now - self._told_at < (RARELY if self._workers > MANY else OFTEN):
            return
        self._told_at = now
        status = self._driver.status()
        self._workers = len(status.get("workers", ()))
        with contextlib.suppress(OSError):  # a full disk ends a run by what it cannot write down, and not by this
            write_json(self._files.work / STATUS, {"at": time.time(), "pid": os.getpid(), **status})

    def close(self) -> None:
        """Attend to nobody any more."""
        if self._bell.descriptor is not None:
            self._supervisor.unwatch(self._bell.descriptor)
        self._bell.close()

    def _do(self, asked: list[dict[str, Any]]) -> None:
        for request in asked:
            by = f"asked by {request.get('by', 'somebody')}"
            match request.get("ask"):
                case "stop" | "kill" as what:
                    self._driver.handle(on.StopAsked(reason=by, kill=what == "kill"))
                case "stacks":
                    self._driver.handle(on.StacksAsked())
                    self.tell(at_once=True)
