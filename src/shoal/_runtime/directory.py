"""The directory of a run, which is never shared with another run."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal._core.errors import RunExists, StorageError
from shoal._core.names import directory_name
from shoal._runtime.lease import Lease, LocalLease, Unneeded
from shoal._runtime.mirror import Mirror, fetch_records
from shoal._runtime.remote_lease import RemoteLease
from shoal._runtime.remote_storage import RelayedStorage, RemoteStorage
from shoal._runtime.storage import LocalStorage, Storage
from shoal._worker.remote import Remote, locate

RUN, EXPERIMENT = "run.json", "experiment.json"
FIRST_CONTACT = 20.0  # seconds after which storage that has never answered is said not to, before anything is started


@dataclass(frozen=True)
class Home:
    """Where a run is kept, and where on this machine its driver writes.

    Attributes
    ----------
    kept : Path or Remote
        The directory of the run, as people know it.
    work : Path
        The same on a disk, or a directory of this machine whose files are copied to where the run is kept.
    lease : Lease
        The right to drive the run.
    checkpoints : Storage
        Its checkpoints.
    resumed : bool
        Whether the run was there already and is gone on with.
    mirror : Mirror or None
        What copies the files, where they have to be.
    """

    kept: Path | Remote
    work: Path
    lease: Lease
    checkpoints: Storage
    resumed: bool
    mirror: Mirror | None = None

    @property
    def storage(self) -> Remote | None:
        """Where workers store and read checkpoints by themselves; ``None`` where they do so in ``work``."""
        return reached_by_workers(self.kept)


def default_storage_path() -> str:
    """Return where runs are kept when nobody says: ``$SHOAL_STORAGE_PATH`` or ``~/shoal_results``."""
    return os.environ.get("SHOAL_STORAGE_PATH") or "~/shoal_results"


def place_of(storage_path: Any, name: str, filesystem: Any = None) -> Path | Remote:
    """Return where the run of this name lies, whether there is one or not."""
    return locate(storage_path or default_storage_path(), filesystem) / directory_name(name)


def reached_by_workers(place: Path | Remote) -> Remote | None:
    """Return the storage that workers store to and read from by themselves, if there is one."""
    return None if isinstance(place, Path) or place.of_this_process else place


def has_run(place: Path | Remote, marker: str = RUN) -> bool:
    """Whether a run lies there, or (``marker=EXPERIMENT``) an experiment."""
    return (place / marker).exists()


@contextmanager
def records_of(place: Path | Remote) -> Iterator[Path]:
    """Yield a directory of this machine with what a run has written down, to read from.

    Raises
    ------
    StorageError
        If there is no run, or it cannot be read.
    """
    if isinstance(place, Path):
        if not has_run(place):
            raise StorageError(f"there is no run at {place}: it has no run.json")
        yield place
        return
    with tempfile.TemporaryDirectory(prefix="shoal-records-") as scratch:
        with storage_errors(place):
            fetch_records(place, Path(scratch))
        if not has_run(Path(scratch)):
            raise StorageError(f"there is no run at {place}: it has no run.json")
        yield Path(scratch)


@contextmanager
def opened(place: Path | Remote, name: str, resume: bool | str, marker: str = RUN) -> Iterator[Home]:
    """Make the directory of a run, or take the run over that is there.

    Parameters
    ----------
    resume : bool or "auto"
        ``False`` refuses a run that is there, ``True`` one that is not, ``"auto"`` takes either.
    marker : str
        The file that shows that there is one: :data:`RUN` or :data:`EXPERIMENT`.

    Raises
    ------
    RunExists
        If a run of this name is there already and is not to be resumed, or another driver drives it.
    StorageError
        If there is none to resume, or the place cannot be written to.
    """
    with storage_errors(place):
        there = has_run(_impatient(place), marker)
    if there and not resume:
        raise _exists(place, name)
    if not there and resume is True:
        raise StorageError(f"there is no run named {name!r} at {place} to resume; resume='auto' starts a new one")
    opener = _opened_here(place, name, there) if isinstance(place, Path) else _opened_there(place, there, marker)
    with opener as home:
        try:
            yield home
        finally:
            home.lease.release()


@contextmanager
def _opened_here(path: Path, name: str, there: bool) -> Iterator[Home]:
    if not there:
        _create(path, name)
    with storage_errors(path):
        lease = LocalLease(path)
    yield Home(path, path, lease, LocalStorage(path / "checkpoints"), there)


def trial_home(experiment: Home, name: str, *, anew: bool = False) -> Home:
    """Return the directory of a trial within its experiment's, by whose lease it is driven; make it if need be.

    What there is of a trial that begins ``anew`` is put aside.
    """
    work, lease = experiment.work / name, Unneeded()
    made = _made(work)
    if not made and anew:
        _put_aside(work)
        made = _made(work)
    resumed = not made and (work / RUN).exists()
    if isinstance(experiment.kept, Path):
        return Home(work, work, lease, LocalStorage(work / "checkpoints"), resumed)
    place = experiment.kept / name
    if not resumed and experiment.resumed and has_run(place):
        fetch_records(place, work, logs=True)
        resumed = True
    epoch = getattr(experiment.lease, "number", 1)
    return Home(place, work, lease, _remote_checkpoints(work, place), resumed, Mirror(work, place, epoch))


def _made(directory: Path) -> bool:
    """Make a directory; false where there is one."""
    try:
        directory.mkdir()
    except FileExistsError:
        return False
    return True


def _put_aside(directory: Path) -> None:
    number = 1
    while (aside := directory.with_name(f"{directory.name}.before-{number}")).exists():
        number += 1
    os.replace(directory, aside)


@contextmanager
def _opened_there(place: Remote, there: bool, marker: str) -> Iterator[Home]:
    with tempfile.TemporaryDirectory(prefix="shoal-run-", ignore_cleanup_errors=True) as scratch:
        work = Path(scratch)
        with storage_errors(place):
            lease = RemoteLease(_impatient(place))
            lease.patient(place)
            if has_run(place, marker) is not there:  # somebody was quicker, and is done already
                lease.release()
                raise _exists(place, place.name)
            if there:
                fetch_records(place, work, logs=True)
        storage = _remote_checkpoints(work, place)
        yield Home(place, work, lease, storage, there, Mirror(work, place, lease.number))


def _remote_checkpoints(work: Path, place: Remote) -> Storage:
    root = place / "checkpoints"
    return RelayedStorage(work / "checkpoints", root) if place.of_this_process else RemoteStorage(root)


def _impatient(place: Any) -> Any:
    """Return the same place, given up sooner: what has never answered is more likely mistyped than overloaded."""
    if isinstance(place, Path):
        return place
    return Remote(place.filesystem, place.path, min(FIRST_CONTACT, place.patient_for))


def _create(path: Path, name: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir()
    except FileExistsError as error:
        if not path.is_dir():
            raise StorageError(
                f"storage_path={str(path.parent)!r}: {error.filename} is a file, not a directory"
            ) from error
        raise _exists(path, name) from error
    except OSError as error:
        raise _cannot_be_kept(path, error) from error


def _exists(place: Path | Remote, name: str) -> RunExists:
    return RunExists(
        f"there is a run named {name!r} at {place} already, and it is not overwritten. To go on with it, use "
        f"RunConfig(resume='auto'); else give this one another name, or leave name out to get a new one each time"
    )


@contextmanager
def storage_errors(place: Path | Remote) -> Iterator[None]:
    """Say of an ``OSError`` that it is the run's directory which cannot be read or written to."""
    try:
        yield
    except OSError as error:
        raise _cannot_be_kept(place, error) from error


def _cannot_be_kept(place: Path | Remote, error: OSError) -> StorageError:
    parent = place.parent if isinstance(place, Path) else place
    return StorageError(
        f"the run cannot be kept in {parent}: {error.strerror or error}. Choose another RunConfig(storage_path=...)"
    )
