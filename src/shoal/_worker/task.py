"""What a worker is given to do, what it may report, and how it leaves the function when it is to stop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal._core.contracts import Framework
from shoal._worker.remote import Remote


@dataclass(frozen=True)
class Task:
    """What travels to each worker as a cloudpickle.

    ``storage`` is the run's directory where that is not on a disk that all machines share, ``start_checkpoint`` the one
    that a run without a checkpoint of its own begins from, ``datasets`` what the trainer was given as such.
    """

    function: Callable[..., Any]
    takes_config: bool
    config: dict[str, Any]
    framework: Framework
    storage: Remote | None = None
    start_checkpoint: Path | Remote | None = None
    datasets: Any = None


class StopTraining(BaseException):
    """Leaves the user's function at a report, because the run was asked to stop.

    Not an ``Exception``, so that a function that catches its own errors does not catch this.
    """


@dataclass(frozen=True, kw_only=True)
class Saved:
    """A checkpoint that is reported.

    ``store`` is the user's own way of storing it, which returns where it lies then; ``replicated`` says whether each
    rank has the whole of it, ``None`` that this is to be derived; ``validation`` how it is to be scored.
    """

    directory: Path | None
    name: str | None = None
    wait: bool = True
    delete_source: bool = False
    store: Callable[[], str] | None = None
    replicated: bool | None = None
    validation: dict[str, Any] | None = None
