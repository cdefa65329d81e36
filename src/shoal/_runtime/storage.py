"""Where checkpoints become visible: commit by rename, with a manifest inside."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import msgspec

from shoal._core.messages import FileEntry
from shoal._core.retention import CommittedCheckpoint
from shoal._worker.files import MANIFEST, digest, stage


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a committed checkpoint consists of."""

    version: int = 1
    report: int
    files: list[FileEntry]

    def with_digests(self, files: Sequence[FileEntry]) -> Manifest:
        """Return it with entries of these files in place of its own."""
        better = {entry.path: entry for entry in files}
        return msgspec.structs.replace(self, files=[better.get(entry.path, entry) for entry in self.files])


def written(manifest: Manifest) -> bytes:
    """Return a manifest as it stands in its file."""
    return msgspec.json.format(msgspec.json.encode(manifest)) + b"\n"


class Storage(Protocol):
    """The checkpoints of one run: what is stored is committed, looked at, deleted."""

    renames: bool

    def commit(self, staging: str, name: str, n: int, files: Sequence[FileEntry]) -> str:
        """Make a stored checkpoint visible in one step and return where. Doing it twice is doing it once."""

    def add_digests(self, name: str, files: Sequence[FileEntry]) -> None:
        """Complete the manifest of a checkpoint with digests of files that it has without."""

    def inspect(self, checkpoint: CommittedCheckpoint, *, full: bool) -> str:
        """Return what is wrong with a checkpoint; empty if it is sound. A commit that was cut short is completed."""

    def discard(self, attempt: int, keep: Collection[str]) -> None:
        """Remove what an attempt has stored and not committed, and none of the checkpoints ``keep``."""

    def delete(self, name: str) -> None:
        """Remove a checkpoint."""


class LocalStorage:
    """The checkpoints of one run on a file system that has an atomic rename."""

    renames = True

    def __init__(self, root: Path):
        self.root = root
        self._doomed: dict[str, None] = {}

    def commit(self, staging: str, name: str, n: int, files: Sequence[FileEntry]) -> str:
        """Make a staged checkpoint visible in one step and return its path. Doing it twice is doing it once."""
        source, target = self.root / staging, self.root / name
        if not source.exists() and target.exists():
            return str(target)
        stage(source)
        (source / MANIFEST).write_bytes(written(Manifest(report=n, files=list(files))))
        if target.exists():  # a damaged checkpoint that a resumed run made anew
            os.rename(target, self.root / f"{staging}.replaced")
        os.rename(source, target)
        shutil.rmtree(self.root / f"{staging}.replaced", ignore_errors=True)
        return str(target)

    def add_digests(self, name: str, files: Sequence[FileEntry]) -> None:
        """Complete the manifest of a checkpoint with digests of files that it has without."""
        path = self.root / name / MANIFEST
        try:
            manifest = msgspec.json.decode(path.read_bytes(), type=Manifest)
            temporary = path.with_name(f"{MANIFEST}.tmp")
            temporary.write_bytes(written(manifest.with_digests(files)))
            os.replace(temporary, path)
        except FileNotFoundError:
            return  # retention has removed the checkpoint meanwhile

    def inspect(self, checkpoint: CommittedCheckpoint, *, full: bool) -> str:
        """Return what is wrong with a checkpoint; empty if it is sound. A commit that was cut short is completed."""
        target, source = self.root / checkpoint.name, self.root / checkpoint.staging
        # The staging place is there until the commit is done, also where a damaged checkpoint still has the name.
        if checkpoint.staging and source.is_dir():
            self.commit(checkpoint.staging, checkpoint.name, checkpoint.n, checkpoint.files)
        return damage(target, full=full)

    def discard(self, attempt: int, keep: Collection[str]) -> None:
        """Remove what an attempt left in staging."""
        try:
            there = os.listdir(self.root)
        except FileNotFoundError:  # as in most trials, which store nothing
            return
        for name in there:
            if name.startswith(f".staging-{attempt}-"):
                shutil.rmtree(self.root / name, ignore_errors=True)

    def delete(self, name: str) -> None:
        """Remove a checkpoint: out of sight in one step, then file by file; later if somebody reads it now."""
        self._doomed[name] = None
        for waiting in list(self._doomed):
            if not read_now(self.root / waiting):
                del self._doomed[waiting]
                self._delete(waiting)

    def _delete(self, name: str) -> None:
        doomed = self.root / f".deleted-{name}"
        try:
            os.rename(self.root / name, doomed)
        except FileNotFoundError:
            return
        shutil.rmtree(doomed, ignore_errors=True)


@contextmanager
def reading(checkpoint: Path) -> Iterator[None]:
    """Keep a committed checkpoint from being removed for as long as the block runs, in whatever process."""
    try:
        file = open(checkpoint / MANIFEST, "rb")  # noqa: SIM115
    except OSError:
        yield  # it is not one of a run's, and nobody removes it
        return
    with file:
        fcntl.flock(file, fcntl.LOCK_SH)
        yield


def read_now(checkpoint: Path) -> bool:
    """Whether somebody reads a checkpoint."""
    try:
        with open(checkpoint / MANIFEST, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def damage(checkpoint: Path, *, full: bool) -> str:
    """Return what is wrong with a checkpoint by its manifest; empty if it is sound.

    Every file must be there with its size. With ``full``, every byte is read and compared with the digests.
    """
    try:
        manifest = msgspec.json.decode((checkpoint / MANIFEST).read_bytes(), type=Manifest)
    except FileNotFoundError:
        return "it is not there" if not checkpoint.exists() else "its manifest is missing"
    except (OSError, msgspec.DecodeError) as error:
        return f"its manifest cannot be read ({error})"
    for entry in manifest.files:
        try:
            size = (checkpoint / entry.path).stat().st_size
        except OSError:
            return f"{entry.path} is missing"
        if size != entry.size:
            return f"{entry.path} has {size} bytes instead of {entry.size}"
        if full and entry.digest and digest(checkpoint / entry.path) != entry.digest:
            return f"{entry.path} has changed: its digest is not {entry.digest}"
    return ""
