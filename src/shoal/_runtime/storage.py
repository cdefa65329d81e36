"""Where checkpoints become visible: commit by rename, with a manifest inside."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import msgspec

from shoal._core.messages import FileEntry
from shoal._core.retention import CommittedCheckpoint
from shoal._worker.files import MANIFEST, digest


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a committed checkpoint consists of."""

    version: int = 1
    report: int
    files: list[FileEntry]


class LocalStorage:
    """The checkpoints of one run on a file system that has an atomic rename."""

    def __init__(self, root: Path):
        self.root = root

    def path(self, name: str) -> Path:
        """Return where a checkpoint lies."""
        return self.root / name

    def commit(self, staging: str, name: str, n: int, files: Sequence[FileEntry]) -> Path:
        """Make a staged checkpoint visible in one step and return its path. Doing it twice is doing it once."""
        source, target = self.root / staging, self.root / name
        if not source.exists() and target.exists():
            return target
        source.mkdir(parents=True, exist_ok=True)
        manifest = Manifest(report=n, files=list(files))
        (source / MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(manifest)) + b"\n")
        if target.exists():  # a damaged checkpoint that a resumed run made anew
            os.rename(target, self.root / f"{staging}.replaced")
        os.rename(source, target)
        shutil.rmtree(self.root / f"{staging}.replaced", ignore_errors=True)
        return target

    def inspect(self, checkpoint: CommittedCheckpoint, *, full: bool) -> str:
        """Return what is wrong with a checkpoint; empty if it is sound. A commit that was cut short is completed."""
        target, source = self.root / checkpoint.name, self.root / checkpoint.staging
        # The staging place is there until the commit is done, also where a damaged checkpoint still has the name.
        if checkpoint.staging and source.is_dir():
            self.commit(checkpoint.staging, checkpoint.name, checkpoint.n, checkpoint.files)
        return damage(target, full=full)

    def discard(self, attempt: int) -> None:
        """Remove what an attempt left in staging."""
        for leftover in self.root.glob(f".staging-{attempt}-*"):
            shutil.rmtree(leftover, ignore_errors=True)

    def delete(self, name: str) -> None:
        """Remove a checkpoint: out of sight in one step, then file by file."""
        doomed = self.root / f".deleted-{name}"
        try:
            os.rename(self.root / name, doomed)
        except FileNotFoundError:
            return
        shutil.rmtree(doomed, ignore_errors=True)


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
