"""Who drives a run on storage without locks: numbered lease objects, of which the highest number is the holder's."""

from __future__ import annotations

import contextlib
import json
import secrets
import threading
import time

from shoal._runtime.lease import alive, holder_now, taken, taken_over
from shoal._worker.remote import Remote

FOLDER = "lease"
BEAT = 5.0  # seconds between two heartbeats, each of which costs two requests
RELEASE_WAIT = 2.0  # seconds; the end of a run does not depend on storage that has stopped
LOOK_AGAIN = 6.0  # seconds; a heart that seems to have stopped may belong to a machine whose clock is behind


class RemoteLease:
    """The right to drive a run.

    To take it is to create the object of the next number, which only one driver can, on storage that creates an object
    only if there is none (S3 and Google's do). A driver that finds a higher number than its own has been taken for
    dead, and writes nothing more.

    Parameters
    ----------
    directory : Remote
        Where the run is kept.
    look_again : float
        How long a heart that seems to have stopped is watched before the run is taken over, in seconds.

    Raises
    ------
    RunExists
        If another driver holds the lease and lives.
    """

    interval = BEAT

    def __init__(self, directory: Remote, look_again: float = LOOK_AGAIN):
        self._folder = directory / FOLDER
        self.token = secrets.token_hex(8)
        holder = self._holder()
        if holder and alive(holder):
            raise taken(str(directory), holder)
        if holder and not holder.get("released") and holder["host"] != holder_now("")["host"]:
            time.sleep(look_again)
            later = self._holder()
            if later and later != holder:
                raise taken(str(directory), later)
        self.number = max(self._numbers(), default=0) + 1
        if not (self._folder / _name(self.number)).create(self._content()):
            raise taken(str(directory), self._holder() or {"pid": "?", "host": "another machine"})
        for number in self._numbers():
            if number < self.number:
                (self._folder / _name(number)).delete()

    def patient(self, directory: Remote) -> None:
        """From now on, try for as long as this directory is tried."""
        self._folder = directory / FOLDER

    def beat(self) -> None:
        """Show that this driver lives."""
        if max(self._numbers(), default=0) > self.number:
            raise taken_over(self._holder() or {})
        (self._folder / _name(self.number)).write(self._content())

    def release(self) -> None:
        """Give the right up, unless somebody has it by now, or the storage does not answer: then it becomes stale."""
        thread = threading.Thread(target=self._release, name="shoal-lease", daemon=True)
        thread.start()
        thread.join(RELEASE_WAIT)

    def _release(self) -> None:
        with contextlib.suppress(OSError):
            self._write_released()

    def _write_released(self) -> None:
        if max(self._numbers(), default=0) == self.number:
            (self._folder / _name(self.number)).write(self._content(released=True))

    def _numbers(self) -> list[int]:
        return _numbers(self._folder)

    def _holder(self) -> dict[str, object] | None:
        return _holder(self._folder)

    def _content(self, released: bool = False) -> bytes:
        holder = holder_now(self.token)
        return json.dumps({**holder, "beat": 0.0, "began": 0.0, "released": True} if released else holder).encode()


def _name(number: int) -> str:
    return f"{number:06d}.json"


def remote_holder(directory: Remote) -> dict[str, object] | None:
    """Return who holds the lease of a run, held it when it died, or (``released``) has given it up."""
    return _holder(directory / FOLDER)


def _numbers(folder: Remote) -> list[int]:
    return [int(name.removesuffix(".json")) for name in folder.names()]


def _holder(folder: Remote) -> dict[str, object] | None:
    numbers = _numbers(folder)
    if not numbers:
        return None
    try:
        return dict(json.loads((folder / _name(max(numbers))).read()))
    except (FileNotFoundError, ValueError):
        return None
