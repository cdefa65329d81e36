"""A checkpoint: a directory of files, as the user wrote them."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal._core import jsonl
from shoal._core.errors import StorageError
from shoal._runtime.storage import damage, reading
from shoal._worker.files import MANIFEST
from shoal._worker.remote import Remote, content, locate

if TYPE_CHECKING:
    from upath import UPath

METADATA = ".metadata.json"
RESERVED = re.compile(r"\.attempt-\d+(-\d+)?$")


class Checkpoint:
    """A directory of files that a training function wrote, and can go on from.

    Parameters
    ----------
    path : str or path
        The directory: a path, a URL such as ``s3://bucket/runs/mine/checkpoints/checkpoint_000003``, or a ``UPath``.
    filesystem : optional
        An fsspec or pyarrow file system in which the path lies.

    Attributes
    ----------
    path : pathlib.Path or upath.UPath
        The directory; ``checkpoint.path / "model.pt"`` is a file in it.
    filesystem : fsspec.AbstractFileSystem
        What reaches it.

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

    def __init__(self, path: str | os.PathLike[str] | UPath, filesystem: Any = None):
        self.place = locate(path, filesystem)

    @property
    def path(self) -> Any:
        """The directory, as people use it."""
        return self.place.upath if isinstance(self.place, Remote) else self.place

    @property
    def filesystem(self) -> Any:
        """The fsspec file system in which the directory lies."""
        if isinstance(self.place, Remote):
            return self.place.filesystem
        from fsspec.implementations.local import LocalFileSystem

        return LocalFileSystem()

    @classmethod
    def from_directory(cls, path: str | os.PathLike[str]) -> Checkpoint:
        """Return the checkpoint that lies in a directory. Nothing is copied."""
        return cls(path)

    def to_directory(self, path: str | os.PathLike[str] | None = None) -> str:
        """Copy the files into a directory, a new temporary one by default, and return its path.

        Raises
        ------
        StorageError
            If there is no checkpoint, or it cannot be read.
        """
        target = Path(path) if path is not None else Path(tempfile.mkdtemp(prefix="checkpoint-"))
        with self.as_directory() as source:
            shutil.copytree(source, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns(MANIFEST))
        return str(target)

    @contextmanager
    def as_directory(self) -> Iterator[str]:
        """Yield a local directory with the files, to read from. Retention leaves it alone until the block has ended.

        What lies on other storage is copied to this machine first, once for all processes that read it then.

        Raises
        ------
        StorageError
            If there is no checkpoint, or it cannot be read.
        """
        if isinstance(self.place, Remote):
            from shoal._runtime.downloads import downloaded

            with downloaded(self.place) as directory:
                yield str(directory)
            return
        if not self.place.is_dir():
            raise StorageError(f"there is no checkpoint at {self.place}")
        with reading(self.place):
            yield str(self.place)

    def verify(self) -> None:
        """Read every byte of a committed checkpoint and compare it with what was stored.

        Raises
        ------
        StorageError
            If a file is missing or differs, or there is no manifest to compare with.
        """
        if isinstance(self.place, Remote):
            from shoal._runtime.remote_storage import remote_damage

            found = remote_damage(self.place, full=True)
        else:
            found = damage(self.place, full=True)
        if found:
            raise StorageError(f"the checkpoint at {self.place} is not sound: {found}")

    def get_metadata(self) -> dict[str, Any]:
        """Return what :meth:`set_metadata` stored with the files; empty if nothing."""
        try:
            file = self.place / METADATA
            return dict(jsonl.decode(content(file)))
        except FileNotFoundError:
            return {}

    def set_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Store plain data with the files, in place of what was there."""
        file, data = self.place / METADATA, jsonl.encode(dict(metadata))
        if isinstance(file, Remote):
            file.write(data)
        else:
            file.write_bytes(data)

    def update_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Add plain data to what is stored with the files."""
        self.set_metadata({**self.get_metadata(), **metadata})

    def __fspath__(self) -> str:
        return str(self.place)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Checkpoint) and str(self.place) == str(other.place)

    def __hash__(self) -> int:
        return hash(str(self.place))

    def __repr__(self) -> str:
        return f"Checkpoint({str(self.place)!r})"


def checkpoint_at(place: Path | Remote) -> Checkpoint:
    """Return the checkpoint that lies there."""
    return Checkpoint(place.path, place.filesystem) if isinstance(place, Remote) else Checkpoint(place)


def local_directory(checkpoint: Checkpoint) -> Path:
    """Return the directory of a checkpoint that is to be reported.

    Raises
    ------
    ValueError
        If it is not a directory of this machine.
    """
    if isinstance(checkpoint.path, Path):
        return checkpoint.path
    raise ValueError(
        f"report(checkpoint={checkpoint!r}): give a directory of this machine; shoal stores its files where the run is "
        "kept. A checkpoint that is stored already is kept with CheckpointUploadMode.NO_UPLOAD"
    )


def checked_name(name: str | None) -> str | None:
    """Return a name for the directory of a checkpoint; raise ``ValueError`` if it cannot be one."""
    if name is None:
        return None
    if Path(name).name != name or name.startswith(".") or not name:
        raise ValueError(f"checkpoint_dir_name={name!r} must be the name of one directory")
    if RESERVED.search(name):
        raise ValueError(f"checkpoint_dir_name={name!r} ends like the names that shoal makes for other attempts")
    return name
