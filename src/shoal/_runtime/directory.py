"""The directory of a run, which is never shared with another run."""

from __future__ import annotations

import os
from pathlib import Path

from shoal._core.errors import RunExists, StorageError
from shoal._core.names import directory_name


def default_storage_path() -> Path:
    """Return where runs are kept when nobody says: ``$SHOAL_STORAGE_PATH`` or ``~/shoal_results``."""
    return Path(os.environ.get("SHOAL_STORAGE_PATH") or "~/shoal_results").expanduser()


def create(storage_path: str | None, name: str) -> Path:
    """Make the directory of a new run.

    Raises
    ------
    RunExists
        If a run of this name is there already.
    StorageError
        If the place cannot be written to.
    """
    parent = Path(storage_path).expanduser().absolute() if storage_path else default_storage_path().absolute()
    path = parent / directory_name(name)
    try:
        parent.mkdir(parents=True, exist_ok=True)
        path.mkdir()
        (path / "logs").mkdir()
        (path / "checkpoints").mkdir()
    except FileExistsError as error:
        if not path.is_dir():
            raise StorageError(f"storage_path={str(parent)!r}: {error.filename} is a file, not a directory") from error
        raise RunExists(
            f"there is a run named {name!r} in {parent} already, and it is not overwritten. Give this one another "
            f"name, leave name out to get a new one each time, or remove {path}"
        ) from error
    except OSError as error:
        raise StorageError(
            f"the run cannot be kept in {parent}: {error.strerror}. Choose another RunConfig(storage_path=...)"
        ) from error
    return path
