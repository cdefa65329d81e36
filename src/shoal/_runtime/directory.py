"""The directory of a run, which is never shared with another run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shoal._core.errors import RunExists, StorageError
from shoal._core.names import directory_name


def default_storage_path() -> Path:
    """Return where runs are kept when nobody says: ``$SHOAL_STORAGE_PATH`` or ``~/shoal_results``."""
    return Path(os.environ.get("SHOAL_STORAGE_PATH") or "~/shoal_results").expanduser()


def place_of(storage_path: str | None, name: str) -> Path:
    """Return where the run of this name lies, whether there is one or not."""
    parent = Path(storage_path).expanduser().absolute() if storage_path else default_storage_path().absolute()
    return parent / directory_name(name)


def create_or_resume(storage_path: str | None, name: str, resume: bool | str) -> tuple[Path, bool]:
    """Return the directory of a run, and whether it was there already and is gone on with.

    Parameters
    ----------
    resume : bool or "auto"
        ``False`` refuses a run that is there, ``True`` one that is not, ``"auto"`` takes either.

    Raises
    ------
    RunExists
        If a run of this name is there already, and is not to be resumed.
    StorageError
        If there is none to resume, or the place cannot be written to.
    """
    path = place_of(storage_path, name)
    there = (path / "run.json").exists()
    if there and resume:
        return path, True
    if resume is True:
        raise StorageError(f"there is no run named {name!r} in {path.parent} to resume; resume='auto' starts a new one")
    return _create(path, name), False


def _create(path: Path, name: str) -> Path:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir()
        (path / "logs").mkdir()
        (path / "checkpoints").mkdir()
    except FileExistsError as error:
        if not path.is_dir():
            raise StorageError(
                f"storage_path={str(path.parent)!r}: {error.filename} is a file, not a directory"
            ) from error
        raise RunExists(
            f"there is a run named {name!r} in {path.parent} already, and it is not overwritten. To go on with it, use "
            f"RunConfig(resume='auto'); else give this one another name, or leave name out to get a new one each time"
        ) from error
    except OSError as error:
        raise _cannot_be_kept(path, error) from error
    return path


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Say of an ``OSError`` that it is the run's directory which cannot be written to."""
    try:
        yield
    except OSError as error:
        raise _cannot_be_kept(path, error) from error


def _cannot_be_kept(path: Path, error: OSError) -> StorageError:
    return StorageError(
        f"the run cannot be kept in {path.parent}: {error.strerror}. Choose another RunConfig(storage_path=...)"
    )
