"""Copying a worker's part of a checkpoint into the staging place."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable
from pathlib import Path

from shoal._core.messages import FileEntry

CHUNK = 1 << 20
OWN_FILES = frozenset({".manifest.json"})


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
            if relative not in OWN_FILES:
                found.append(FileEntry(path=relative, size=path.stat().st_size))
    return found


def copy(source: Path, target: Path, files: Iterable[str]) -> list[FileEntry]:
    """Copy files and return them with sizes and digests. Each appears in ``target`` whole or not at all."""
    target.mkdir(parents=True, exist_ok=True)
    return [_copy_file(source / file, target / file, file) for file in files]


def _copy_file(source: Path, target: Path, name: str) -> FileEntry:
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name[:200]}.part")
    size, checksum = 0, 0
    with open(source, "rb") as reading, open(temporary, "wb") as writing:
        while chunk := reading.read(CHUNK):
            writing.write(chunk)
            checksum = zlib.crc32(chunk, checksum)
            size += len(chunk)
    os.replace(temporary, target)
    return FileEntry(path=name, size=size, digest=f"crc32:{checksum:08x}")


def digest(path: Path) -> str:
    """Return the digest of a file as it stands in a manifest."""
    checksum = 0
    with open(path, "rb") as file:
        while chunk := file.read(CHUNK):
            checksum = zlib.crc32(chunk, checksum)
    return f"crc32:{checksum:08x}"
