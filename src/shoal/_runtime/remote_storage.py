"""Checkpoints on storage without an atomic rename: files are put where they stay, and the manifest is written last."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Sequence
from pathlib import Path

import msgspec

from shoal._core.messages import FileEntry
from shoal._core.retention import CommittedCheckpoint
from shoal._runtime.storage import LocalStorage, Manifest, damage, written
from shoal._worker.files import MANIFEST
from shoal._worker.remote import Remote


class RemoteStorage:
    """The checkpoints of one run, whose files workers put into their places by themselves."""

    renames = False

    def __init__(self, root: Remote):
        self.root = root

    def commit(self, staging: str, name: str, n: int, files: Sequence[FileEntry]) -> str:
        """Write the manifest, without which nobody takes the files for a checkpoint."""
        (self.root / name / MANIFEST).write(written(Manifest(report=n, files=list(files))))
        return str(self.root / name)

    def add_digests(self, name: str, files: Sequence[FileEntry]) -> None:
        manifest = _manifest(self.root / name)
        if manifest is not None:
            (self.root / name / MANIFEST).write(written(manifest.with_digests(files)))

    def inspect(self, checkpoint: CommittedCheckpoint, *, full: bool) -> str:
        place = self.root / checkpoint.name
        if not (place / MANIFEST).exists():
            sizes = place.sizes()
            if all(sizes.get(entry.path) == entry.size for entry in checkpoint.files):
                self.commit(checkpoint.staging, checkpoint.name, checkpoint.n, checkpoint.files)
        return remote_damage(place, full=full)

    def discard(self, attempt: int, keep: Collection[str]) -> None:
        for name in set(self.root.names()).difference(keep):
            if not (self.root / name / MANIFEST).exists():
                (self.root / name).delete()

    def delete(self, name: str) -> None:
        (self.root / name / MANIFEST).delete()  # out of sight in one step, then file by file
        (self.root / name).delete()


class RelayedStorage:
    """The checkpoints of one run on storage that only the driver reaches.

    Workers store and read on the driver's disk; what is committed there is copied to where it is kept.
    """

    renames = True

    def __init__(self, work: Path, root: Remote):
        self.local = LocalStorage(work)
        self.work = work
        self.remote = RemoteStorage(root)

    def commit(self, staging: str, name: str, n: int, files: Sequence[FileEntry]) -> str:
        target = self.remote.root / name
        target.delete()  # a name used again is the newer checkpoint's
        self.local.commit(staging, name, n, files)
        stored = target.put(self.work / name, [entry.path for entry in files])
        return self.remote.commit(name, name, n, stored)

    def add_digests(self, name: str, files: Sequence[FileEntry]) -> None:
        self.local.add_digests(name, files)

    def inspect(self, checkpoint: CommittedCheckpoint, *, full: bool) -> str:
        here = self.work / checkpoint.name
        if (self.work / checkpoint.staging).is_dir() and checkpoint.staging:
            self.commit(checkpoint.staging, checkpoint.name, checkpoint.n, checkpoint.files)
        found = remote_damage(self.remote.root / checkpoint.name, full=full)
        if not found and not here.exists():
            fetch(self.remote.root / checkpoint.name, here)
        return found

    def discard(self, attempt: int, keep: Collection[str]) -> None:
        self.local.discard(attempt, keep)
        self.remote.discard(attempt, keep)

    def delete(self, name: str) -> None:
        self.local.delete(name)
        self.remote.delete(name)


def remote_damage(checkpoint: Remote, *, full: bool) -> str:
    """Return what is wrong with a checkpoint by its manifest; empty if it is sound. ``full`` reads every byte.

    Raises
    ------
    OSError
        If the storage does not answer, of which nothing follows for the checkpoint.
    """
    try:
        manifest = _manifest(checkpoint)
    except msgspec.DecodeError as error:
        return f"its manifest cannot be read ({error})"
    if manifest is None:
        return "its manifest is missing" if checkpoint.exists() else "it is not there"
    sizes = checkpoint.sizes()
    for entry in manifest.files:
        if entry.path not in sizes:
            return f"{entry.path} is missing"
        if sizes[entry.path] != entry.size:
            return f"{entry.path} has {sizes[entry.path]} bytes instead of {entry.size}"
    if full:
        expected = {entry.path: entry.digest for entry in manifest.files if entry.digest}
        for path, found in checkpoint.digests(expected).items():
            if found != expected[path]:
                return f"{path} has changed: its digest is not {expected[path]}"
    return ""


def fetch(checkpoint: Remote, target: Path) -> None:
    """Copy a checkpoint to this machine's disk, whole or not at all. Where it has a manifest, every byte is checked.

    Raises
    ------
    OSError
        If it cannot be read, or is damaged.
    """
    manifest = _manifest(checkpoint)
    names = [entry.path for entry in manifest.files] if manifest else sorted(checkpoint.sizes())
    if not names and manifest is None:
        raise FileNotFoundError(f"there is no checkpoint at {checkpoint}")
    loading = target.with_name(f"{target.name}.loading")
    shutil.rmtree(loading, ignore_errors=True)
    loading.mkdir(parents=True)
    extra = [] if manifest is None else [name for name in checkpoint.names() if name.startswith(".")]
    checkpoint.get({*names, *extra}, loading)
    found = damage(loading, full=True) if manifest else ""
    if found:
        shutil.rmtree(loading, ignore_errors=True)
        raise OSError(f"the checkpoint at {checkpoint} is not sound: {found}")
    loading.rename(target)


def _manifest(checkpoint: Remote) -> Manifest | None:
    try:
        return msgspec.json.decode((checkpoint / MANIFEST).read(), type=Manifest)
    except FileNotFoundError:
        return None
