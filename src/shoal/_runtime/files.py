"""Writing files so that a reader never sees half of one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec

from shoal._core import jsonl

SMALL = 4096  # bytes


def open_append(path: str | Path) -> int:
    """Open a file of lines for appending, on a fresh line also where a dying process left half of one."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
    size = os.fstat(file).st_size
    if size and os.pread(file, 1, size - 1) != b"\n":
        os.write(file, b"\n")
    return file


def write_all(file: int, data: bytes) -> None:
    """Write everything, or raise ``OSError``."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(file, rest) :]


def write_json(path: str | Path, value: Any) -> None:
    """Write a JSON file as a whole or not at all."""
    content = msgspec.json.format(jsonl.encode(value)) + b"\n"
    if len(content) >= SMALL or not _created(path, content):
        path = Path(path)
        temporary = path.with_name(f".{path.name}.tmp")
        temporary.write_bytes(content)
        os.replace(temporary, path)


def _created(path: str | Path, content: bytes) -> bool:
    """Make a small file, in one call of the system that no death of this process divides, unless it is there."""
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    except FileExistsError:
        return False
    try:
        write_all(file, content)
    finally:
        os.close(file)
    return True
