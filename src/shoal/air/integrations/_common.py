"""What integrations with trackers share."""

from __future__ import annotations

import importlib
from typing import Any

from shoal.train import TrainContext, get_context


def client(module: str, extra: str, user: str) -> Any:
    """Import the client of a tracker, or say how to get it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"{user} needs {module}: pip install 'shoal[{extra}]'") from error


def own_context() -> TrainContext | None:
    """Return what a worker knows of itself; ``None`` in a process that is none."""
    try:
        return get_context()
    except RuntimeError:
        return None


def is_first() -> bool:
    """Whether this is rank 0 of a worker group, or a process that is in none."""
    context = own_context()
    return context is None or context.get_world_rank() == 0


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
