"""A directory on storage that is reached through fsspec: put, read, list, delete, each with patience.

What may pass (a server that answers 503, a connection that breaks) is tried again for a bounded time; what will not (no
such bucket, no permission) is raised at once. Whatever cannot be done ends as an ``OSError`` that says where and why.
"""

from __future__ import annotations

import errno
import os
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from shoal._core.messages import FileEntry
from shoal._core.names import stored_elsewhere
from shoal._worker.files import file_entry, stream_digest

if TYPE_CHECKING:
    import tenacity
    from fsspec import AbstractFileSystem
    from upath import UPath

T = TypeVar("T")

PATIENCE = 120.0  # seconds for which a request that fails is tried again
AT_ONCE = 4  # files under way at the same time
BLOCK = 16 << 20  # bytes of a file that are asked for at once
# These have no directories. Others are made; here that would make a bucket of a mistyped name.
OBJECT_STORES = frozenset(
    {"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "wasb", "oss", "oci", "r2", "tos", "memory"}
)
LASTING = (
    FileNotFoundError,
    PermissionError,
    FileExistsError,
    IsADirectoryError,
    NotADirectoryError,
    NotImplementedError,
    ImportError,
    TypeError,
    ValueError,
)
# Of botocore and google.auth, which are not imported for this.
LASTING_NAMES = frozenset({"NoCredentialsError", "PartialCredentialsError", "DefaultCredentialsError", "RefreshError"})


@dataclass(frozen=True)
class Remote:
    """A directory, which need not exist: object stores have none.

    Parameters
    ----------
    filesystem : AbstractFileSystem
        What reaches the storage.
    path : str
        The directory, as the file system takes it: ``bucket/runs/mine``.
    patience : float, optional
        For how many seconds a request that fails is tried again; ``$SHOAL_STORAGE_PATIENCE_S`` or two minutes.
    """

    filesystem: AbstractFileSystem
    path: str
    patience: float | None = None

    def __truediv__(self, name: str) -> Remote:
        return Remote(self.filesystem, f"{self.path.rstrip('/')}/{name}", self.patience)

    def __str__(self) -> str:
        return str(self.upath)

    @property
    def patient_for(self) -> float:
        """For how many seconds a request that fails is tried again."""
        return self.patience if self.patience is not None else patience_of(os.environ)

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rstrip("/").rpartition("/")[2]

    @property
    def parent(self) -> Remote:
        """The directory in which it lies."""
        return Remote(self.filesystem, self.path.rstrip("/").rpartition("/")[0], self.patience)

    @property
    def upath(self) -> UPath:
        """The directory as people use it."""
        from upath import UPath

        url = self.filesystem.unstrip_protocol(self.path)
        path: UPath = UPath(url, **self.filesystem.storage_options)
        path._fs_cached = self.filesystem  # there are file systems that no URL leads to
        return path

    @property
    def of_this_process(self) -> bool:
        """Whether no other process can reach it: what workers store there goes through the driver."""
        return "memory" in self._protocols

    @property
    def _protocols(self) -> tuple[str, ...]:
        protocol = self.filesystem.protocol
        return (protocol,) if isinstance(protocol, str) else tuple(protocol)

    # ---- writing ----------------------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Write this as a file: whole or not at all, where the storage has that."""
        self._make_parent()
        self._patiently(self.filesystem.pipe_file, self.path, data)

    def create(self, data: bytes) -> bool:
        """Write this as a file if there is none; return whether it was written."""
        self._make_parent()
        try:
            self._patiently(self.filesystem.pipe_file, self.path, data, mode="create")
        except FileExistsError:
            return bool(self.read() == data)  # an answer that was lost on its way to us
        return True

    def put(self, source: Path, files: Iterable[str]) -> list[FileEntry]:
        """Store files of a local directory below this one and return them with sizes and digests."""
        named = list(files)
        with ThreadPoolExecutor(AT_ONCE, "shoal-upload") as uploads, ThreadPoolExecutor(1, "shoal-digest") as digests:
            entries = digests.map(lambda file: file_entry(source / file, file), named)
            list(uploads.map(lambda file: (self / file).upload(source / file), named))
            return list(entries)

    def upload(self, source: Path) -> None:
        """Make this file a copy of one of this machine."""
        self._make_parent()
        self._patiently(self.filesystem.put_file, str(source), self.path)

    def _make_parent(self) -> None:
        if OBJECT_STORES.isdisjoint(self._protocols):
            self._patiently(self.filesystem.makedirs, self.path.rpartition("/")[0], exist_ok=True)

    # ---- reading ----------------------------------------------------------------------------------------------------

    def read(self) -> bytes:
        """Return the content of this file."""
        return bytes(self._patiently(self.filesystem.cat_file, self.path))

    def exists(self) -> bool:
        """Whether there is such a file or directory."""
        return bool(self._patiently(self._fresh(self.filesystem.exists), self.path))

    def names(self) -> list[str]:
        """Return the names of what lies directly in this directory; nothing if there is no such directory."""
        try:
            found = self._patiently(self._fresh(self.filesystem.ls), self.path, detail=False)
        except FileNotFoundError:
            return []
        return sorted(name for path in found if (name := path.rstrip("/").rpartition("/")[2]) and name != self.name)

    def sizes(self) -> dict[str, int]:
        """Return the size of every file below this directory, by its path relative to it."""
        try:
            found = self._patiently(self._fresh(self.filesystem.find), self.path, detail=True)
        except FileNotFoundError:
            return {}
        start = len(self.path.strip("/")) + 1
        return {path.strip("/")[start:]: int(info["size"]) for path, info in found.items()}

    def get(self, files: Iterable[str], target: Path) -> None:
        """Copy files of this directory into a local one. Each appears there whole or not at all."""
        with ThreadPoolExecutor(AT_ONCE, "shoal-download") as pool:
            list(pool.map(lambda file: (self / file)._get_file(target / file), files))

    def _get_file(self, target: Path) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{target.name[:200]}.part")
        self._patiently(self.filesystem.get_file, self.path, str(temporary))
        os.replace(temporary, target)

    def digests(self, files: Iterable[str]) -> dict[str, str]:
        """Return the digests of files of this directory, every byte of which is read for that."""
        named = list(files)
        with ThreadPoolExecutor(AT_ONCE, "shoal-digest") as pool:
            return dict(zip(named, pool.map(lambda file: (self / file)._digest(), named), strict=True))

    def _digest(self) -> str:
        def read() -> str:
            with self.filesystem.open(self.path, "rb", block_size=BLOCK) as file:
                return stream_digest(file)

        return self._patiently(read)

    # ---- removing ---------------------------------------------------------------------------------------------------

    def delete(self) -> None:
        """Remove this file, or this directory with everything in it. It need not be there."""
        try:
            self._patiently(self._fresh(self.filesystem.rm), self.path, recursive=True)
        except FileNotFoundError:
            return

    # ---- patience ---------------------------------------------------------------------------------------------------

    def _fresh(self, call: Callable[..., T]) -> Callable[..., T]:
        """Let a call not answer from what fsspec remembers of earlier listings: others write here, too."""

        def without_memory(*args: Any, **kwargs: Any) -> T:
            self.filesystem.invalidate_cache()
            return call(*args, **kwargs)

        return without_memory

    def _patiently(self, call: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        import tenacity

        patience = self.patient_for
        retrying = tenacity.Retrying(
            stop=tenacity.stop_after_delay(patience),
            wait=tenacity.wait_random_exponential(multiplier=0.1, max=5.0),
            retry=tenacity.retry_if_exception(passing),
            before_sleep=_Complaint(str(self), patience),
            reraise=True,
        )
        try:
            return retrying(call, *args, **kwargs)
        except LASTING:
            raise
        except Exception as error:
            raise OSError(errno.EIO, f"{type(error).__name__}: {error}", str(self)) from error


def locate(path: str | os.PathLike[str] | UPath, filesystem: Any = None) -> Path | Remote:
    """Return where a path or URL leads: to a directory of this machine, or of other storage.

    Parameters
    ----------
    path : str or path
        A path, a URL of any protocol that fsspec knows (``s3://bucket/runs``), or a ``UPath``.
    filesystem : optional
        An fsspec or pyarrow file system in which the path lies.

    Raises
    ------
    ValueError
        If the URL's protocol is unknown, or ``filesystem`` is not a file system.
    ImportError
        If a package is missing that reaches this storage; the message says which.
    """
    if filesystem is not None:
        known = _as_fsspec(filesystem)
        return _located(known, str(known._strip_protocol(str(path))))
    if not isinstance(path, (str, os.PathLike)):  # a UPath of other storage is not one
        return _located(path.fs, path.path)
    text = os.fspath(path)
    if "://" not in text and "::" not in text:
        return Path(text).expanduser().absolute()
    import fsspec

    protocol = text.partition("://")[0]
    try:
        return _located(*fsspec.core.url_to_fs(text, **_DEFAULTS.get(protocol, {})))
    except ImportError as error:
        raise ImportError(f"{text} cannot be reached: {error}" + _PACKAGES.get(protocol, "")) from error
    except ValueError as error:
        raise ValueError(f"{text!r} is neither a path nor a URL of storage that fsspec knows: {error}") from error


def content(file: Path | Remote) -> bytes:
    """Return what a file holds, wherever it lies."""
    return file.read() if isinstance(file, Remote) else file.read_bytes()


def names_in(directory: Path | Remote) -> list[str]:
    """Return the names of what lies in a directory, in order; nothing if there is no such directory, or no leave."""
    try:
        return directory.names() if isinstance(directory, Remote) else sorted(os.listdir(directory))
    except OSError:
        return []


def within(root: Path | Remote, name: str) -> Path | Remote:
    """Return where a checkpoint lies: below ``root``, or where the user's own code has stored it."""
    if not stored_elsewhere(name):
        return root / name
    while name.startswith("../"):  # of another trial of the same experiment
        root, name = root.parent, name.removeprefix("../")
        if not name.startswith("../"):
            return root / name
    if isinstance(root, Remote) and name.startswith(str(root.upath.protocol) + "://"):
        return locate(name, root.filesystem)  # with the credentials that the run itself has
    return locate(name)


# A server that has stopped answers nothing: without these, a request waits for minutes before it is made again.
_S3: dict[str, Any] = {
    "config_kwargs": {"connect_timeout": 10, "read_timeout": 20, "retries": {"mode": "standard", "max_attempts": 2}}
}
_DEFAULTS: dict[str, dict[str, Any]] = {"s3": _S3, "s3a": _S3}
_PACKAGES = {
    "s3": '. pip install "shoal[s3]"',
    "s3a": '. pip install "shoal[s3]"',
    "gs": '. pip install "shoal[gcs]"',
    "gcs": '. pip install "shoal[gcs]"',
}


def _located(filesystem: AbstractFileSystem, path: str) -> Path | Remote:
    protocol = filesystem.protocol
    if "file" in ((protocol,) if isinstance(protocol, str) else protocol):
        return Path(path).absolute()
    return Remote(filesystem, path)


def _as_fsspec(filesystem: Any) -> AbstractFileSystem:
    from fsspec import AbstractFileSystem

    if isinstance(filesystem, AbstractFileSystem):
        return filesystem
    if type(filesystem).__module__.startswith("pyarrow."):
        from fsspec.implementations.arrow import ArrowFSWrapper

        if filesystem.type_name == "local":
            from fsspec.implementations.local import LocalFileSystem

            return LocalFileSystem()
        return ArrowFSWrapper(filesystem)
    raise ValueError(
        f"storage_filesystem={filesystem!r} is a {type(filesystem).__name__}; give an fsspec or pyarrow file system"
    )


class _Complaint:
    """Says on standard error that storage does not answer: after five seconds, and then every thirty."""

    def __init__(self, place: str, patience: float):
        self._place = place
        self._patience = patience
        self._began = time.monotonic()
        self._next = 5.0

    def __call__(self, state: tenacity.RetryCallState) -> None:
        waited = time.monotonic() - self._began
        if waited < self._next:
            return
        self._next = waited + 30.0
        error = state.outcome.exception() if state.outcome else None
        print(
            f"shoal: {self._place} does not answer for {waited:.0f} s ({type(error).__name__}: {error}); it is tried "
            f"again until {self._patience:g} s have passed",
            file=sys.stderr,
            flush=True,
        )


def passing(error: BaseException) -> bool:
    """Whether a request that failed like this may succeed when it is made again."""
    return (
        isinstance(error, Exception)
        and not isinstance(error, LASTING)
        and type(error).__name__ not in LASTING_NAMES
        and getattr(error, "errno", None) not in {errno.ENOSPC, errno.EROFS, errno.EDQUOT}
    )


def patience_of(environment: Any) -> float:
    """Return for how many seconds storage is tried again."""
    return float(environment.get("SHOAL_STORAGE_PATIENCE_S") or PATIENCE)
