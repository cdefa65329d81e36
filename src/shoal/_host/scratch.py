"""The private directories of hosts: made, held, and removed where a host was killed and could not do it itself."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import threading
import time
from pathlib import Path

PREFIX = "shoal-host-"
OLD = 3600.0  # seconds; a younger one may belong to a host that is about to hold it


def make() -> Path:
    """Return a new directory for a host."""
    return Path(tempfile.mkdtemp(prefix=PREFIX))


def hold(directory: Path) -> int:
    """Show that the host of a directory lives, until the descriptor that is returned is closed."""
    held = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    with contextlib.suppress(OSError):  # a file system that has no locks: then nobody gets one to remove it either
        fcntl.flock(held, fcntl.LOCK_SH | fcntl.LOCK_NB)
    return held


def tidy(parent: Path) -> None:
    """Remove directories of this user's hosts that are gone, in the background: they may be large."""
    threading.Thread(target=remove_left, args=(parent, OLD), name="shoal-tidy", daemon=True).start()


def remove_left(parent: Path, age: float) -> None:
    """Remove the directories in ``parent`` that no host holds, if they are as old as this, in seconds."""
    for place in parent.glob(f"{PREFIX}*"):
        try:
            found = place.lstat()
            if found.st_uid == os.geteuid() and time.time() - found.st_mtime >= age:
                _remove(place)
        except OSError:
            continue  # it is held, or somebody else was quicker


def _remove(place: Path) -> None:
    """Remove a directory; raise ``OSError`` where a host holds it."""
    directory = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(place, ignore_errors=True)
    finally:
        os.close(directory)
