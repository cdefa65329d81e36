"""Checkpoints of other storage on this machine's disk, once for all processes that read one at the same time."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shoal._core.errors import StorageError
from shoal._runtime.remote_storage import fetch
from shoal._worker.files import MANIFEST
from shoal._worker.remote import Remote


@contextmanager
def downloaded(checkpoint: Remote) -> Iterator[Path]:
    """Yield a directory with the files. It is removed when the last process that reads it leaves the block.

    Raises
    ------
    StorageError
        If there is no checkpoint, or it cannot be read, or is damaged.
    """
    cache = Path(tempfile.gettempdir(), f"shoal-checkpoints-{os.getuid()}")
    cache.mkdir(mode=0o700, exist_ok=True)
    if cache.stat().st_uid != os.getuid():
        raise StorageError(f"{cache} belongs to somebody else, so checkpoints cannot be kept there; set TMPDIR")
    try:
        state = (checkpoint / MANIFEST).read() if (checkpoint / MANIFEST).exists() else b""
    except OSError as error:
        raise _unreadable(checkpoint, error) from error
    # The same name with other content, or under other credentials, is another checkpoint.
    identity = repr((str(checkpoint), checkpoint.filesystem.storage_options, state))
    directory = cache / hashlib.sha256(identity.encode()).hexdigest()[:24]
    with open(directory.with_suffix(".lock"), "a") as lock:
        _load(checkpoint, directory, lock.fileno())
        try:
            yield directory
        finally:
            _leave(directory, lock.fileno())


def _load(checkpoint: Remote, directory: Path, lock: int) -> None:
    """Have the files there, and hold a shared lock on them."""
    while True:
        fcntl.flock(lock, fcntl.LOCK_SH)
        if directory.is_dir():
            return
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not directory.is_dir():
            try:
                fetch(checkpoint, directory)
            except OSError as error:
                raise _unreadable(checkpoint, error) from error


def _leave(directory: Path, lock: int) -> None:
    """Remove the files if nobody else reads them."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return
    shutil.rmtree(directory, ignore_errors=True)


def _unreadable(checkpoint: Remote, error: OSError) -> StorageError:
    return StorageError(f"the checkpoint at {checkpoint} cannot be read: {error.strerror or error}")
