"""Putting a worker's part of a checkpoint into the staging place: copied, or moved where it was written for that."""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from shoal._core.messages import FileEntry

CHUNK = 4 << 20
MANIFEST = ".manifest.json"
FICLONE = 0x40049409


class Readable(Protocol):
    """A file that is open for reading bytes."""

    def read(self, size: int, /) -> bytes | None: ...


def listing(directory: Path) -> list[FileEntry]:
    """Return the files below a directory, without digests, in a fixed order. Links to directories are not followed."""
    if not directory.is_dir():
        raise FileNotFoundError(f"the checkpoint {directory} is not a directory")
    found: list[FileEntry] = []
    for folder, subfolders, names in os.walk(directory):
        subfolders.sort()
        for name in sorted(names):
            path = Path(folder, name)
            relative = path.relative_to(directory).as_posix()
            if relative != MANIFEST:
                found.append(FileEntry(path=relative, size=path.stat().st_size))
    return found


def stage(target: Path) -> None:
    """Make the directory of a checkpoint in the making, and the one of all checkpoints for the first of them.

    Not the one of the run: where it was removed, it is not made again.
    """
    try:
        target.mkdir(exist_ok=True)
    except FileNotFoundError:
        if not target.parent.parent.is_dir():
            raise FileNotFoundError(
                f"the run's directory {target.parent.parent} is not there on {socket.gethostname()}: it is removed, or "
                "lies on a disk of the driver's machine alone. Workers on several machines need a storage_path "
                "that all of them reach: a shared file system, or a URL such as s3://bucket/runs"
            ) from None
        target.parent.mkdir(exist_ok=True)
        target.mkdir(exist_ok=True)


def copy(source: Path, target: Path, files: Iterable[str]) -> list[FileEntry]:
    """Copy files and return them with sizes, without digests. Each appears in ``target`` whole or not at all."""
    stage(target)
    return [_copy_file(source / file, target / file, file) for file in files]


def move(source: Path, target: Path, files: Iterable[str]) -> list[FileEntry]:
    """Move files within a file system and return them with sizes, without digests. ``target`` is as for ``copy``."""
    entries = []
    stage(target)
    for file in files:
        (target / file).parent.mkdir(parents=True, exist_ok=True)
        os.replace(source / file, target / file)
        entries.append(FileEntry(path=file, size=(target / file).stat().st_size))
    return entries


def with_digests(directory: int, entries: Iterable[FileEntry]) -> list[FileEntry]:
    """Return the entries with the digests of their files in an open directory, whatever name it has by now."""

    def opener(path: str, flags: int) -> int:
        return os.open(path, flags, dir_fd=directory)

    found = []
    for entry in entries:
        with open(entry.path, "rb", buffering=0, opener=opener) as file:
            found.append(FileEntry(path=entry.path, size=entry.size, digest=stream_digest(file)))
    return found


def digest(path: Path) -> str:
    """Return the digest of a file as it stands in a manifest."""
    with open(path, "rb", buffering=0) as file:
        return stream_digest(file)


def stream_digest(file: Readable) -> str:
    """Return the digest of what is left to read in a file."""
    checksum = 0
    while chunk := file.read(CHUNK):
        checksum = zlib.crc32(chunk, checksum)
    return _written(checksum)


def file_entry(path: Path, name: str) -> FileEntry:
    """Return a file as it stands in a manifest, under ``name``."""
    return FileEntry(path=name, size=path.stat().st_size, digest=digest(path))


def _written(checksum: int) -> str:
    return f"crc32:{checksum:08x}"


def _copy_file(source: Path, target: Path, name: str) -> FileEntry:
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name[:200]}.part")
    if not _cloned(source, temporary):
        shutil.copyfile(source, temporary)  # within the kernel, where it can
    entry = FileEntry(path=name, size=temporary.stat().st_size)
    os.replace(temporary, target)
    return entry


def _cloned(source: Path, target: Path) -> bool:
    """Let the copy share its blocks with the original, on file systems that copy them when one of both is written."""
    with open(source, "rb") as reading, open(target, "wb") as writing:
        try:
            fcntl.ioctl(writing.fileno(), FICLONE, reading.fileno())
            return True
        except OSError:  # another file system, or one that cannot
            # ext4 writes a file out at once that was truncated when it was there already: begin with a new one.
            target.unlink()
            return False
