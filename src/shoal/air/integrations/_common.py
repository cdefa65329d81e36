"""What integrations with trackers share."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from shoal.train import Checkpoint, get_context


def client(module: str, extra: str, user: str) -> Any:
    """Import the client of a tracker, or say how to get it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"{user} needs {module}: pip install 'shoal[{extra}]'") from error


@contextmanager
def files_of(checkpoint: str) -> Iterator[str]:
    """Yield a directory of this machine with the files of a checkpoint, wherever it is kept."""
    with Checkpoint(checkpoint).as_directory() as directory:
        yield str(directory)


def is_first() -> bool:
    """Whether this is rank 0 of a worker group, or a process that is in none."""
    try:
        return get_context().get_world_rank() == 0
    except RuntimeError:
        return True


class Nothing:
    """Stands for a tracker's module or run on all ranks but the first: takes every call and does nothing."""

    def __getattr__(self, name: str) -> Nothing:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *arguments: Any, **more: Any) -> Nothing:
        return self

    def __enter__(self) -> Nothing:
        return self

    def __exit__(self, *error: object) -> None:
        return None


def flat(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return parameters by names with ``/`` between the levels."""
    found: dict[str, Any] = {}
    for name, value in config.items():
        found |= flat(value, f"{prefix}{name}/") if isinstance(value, dict) and value else {f"{prefix}{name}": value}
    return found
