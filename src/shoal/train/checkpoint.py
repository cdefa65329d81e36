"""A checkpoint: a directory of files, as the user wrote them."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from shoal._core import jsonl
from shoal._core.errors import StorageError
from shoal._runtime.storage import damage
from shoal._worker.files import MANIFEST

METADATA = ".metadata.json"


class Checkpoint:
    """A directory of files that a training function wrote, and can go on from.

    Parameters
    ----------
    path : str or path
        The directory.

    Attributes
    ----------
    path : pathlib.Path
        The directory; ``checkpoint.path / "model.pt"`` is a file in it.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> directory = pathlib.Path(tempfile.mkdtemp())
    >>> _ = (directory / "epoch.txt").write_text("3")
    >>> checkpoint = Checkpoint.from_directory(directory)
    >>> with checkpoint.as_directory() as path:
    ...     pathlib.Path(path, "epoch.txt").read_text()
    '3'
    """

    def __init__(self, path: str | os.PathLike[str]):
        self.path = Path(path)

    @classmethod
    def from_directory(cls, path: str | os.PathLike[str]) -> Checkpoint:
        """Return the checkpoint that lies in a directory. Nothing is copied."""
        return cls(path)

    def to_directory(self, path: str | os.PathLike[str] | None = None) -> str:
        """Copy the files into a directory, a new temporary one by default, and return its path."""
        target = Path(path) if path is not None else Path(tempfile.mkdtemp(prefix="checkpoint-"))
        if not self.path.is_dir():
            raise StorageError(f"there is no checkpoint at {self.path}")
        shutil.copytree(self.path, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns(MANIFEST))
        return str(target)

    @contextmanager
    def as_directory(self) -> Iterator[str]:
        """Yield a local directory with the files, to read from. It may be gone after the block."""
        if not self.path.is_dir():
            raise StorageError(f"there is no checkpoint at {self.path}")
        yield str(self.path)

    def verify(self) -> None:
        """Read every byte of a committed checkpoint and compare it with what was stored.

        Raises
        ------
        StorageError
            If a file is missing or differs, or there is no manifest to compare with.
        """
        found = damage(self.path, full=True)
        if found:
            raise StorageError(f"the checkpoint at {self.path} is not sound: {found}")

    def get_metadata(self) -> dict[str, Any]:
        """Return what :meth:`set_metadata` stored with the files; empty if nothing."""
        try:
            return dict(jsonl.decode((self.path / METADATA).read_bytes()))
        except FileNotFoundError:
            return {}

    def set_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Store plain data with the files, in place of what was there."""
        (self.path / METADATA).write_bytes(jsonl.encode(dict(metadata)))

    def update_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Add plain data to what is stored with the files."""
        self.set_metadata({**self.get_metadata(), **metadata})

    def __fspath__(self) -> str:
        return str(self.path)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Checkpoint) and self.path == other.path

    def __hash__(self) -> int:
        return hash(self.path)

    def __repr__(self) -> str:
        return f"Checkpoint({str(self.path)!r})"
