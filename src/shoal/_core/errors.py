"""The errors that shoal raises. ``ShoalError`` is the root of all of them."""

from __future__ import annotations

from collections.abc import Mapping


class ShoalError(Exception):
    """The root of every error that shoal raises on purpose."""


class InfeasibleRequest(ShoalError):
    """More was asked for than the machines can ever give. Raised at once, never after a wait."""


class RunExists(ShoalError):
    """The name of a new run is taken by an earlier one, which is never overwritten."""


class StorageError(ShoalError):
    """Something could not be written to, or read from, the place where the run is kept."""


class UnpicklableError(ShoalError, TypeError):
    """The training function, or something that it carries along, cannot be sent to another process."""


class OutsideWorkerError(ShoalError, RuntimeError):
    """A function that only has a meaning inside a worker was called somewhere else."""


class RemoteError(ShoalError):
    """An exception of the user's code that could not be rebuilt here; its type and traceback are in the text."""


class WorkerDied(ShoalError):
    """A worker process ended without finishing: a signal, an exit code, a lost machine."""


class TrainingFailedError(ShoalError):
    """A run failed. The first line names the cause; ``__cause__`` is the user's own exception where there is one.

    Attributes
    ----------
    worker_failures : dict[int, BaseException]
        What ended each rank that failed in the last attempt, the root cause first.
    path : str
        The directory of the run.
    """

    def __init__(self, message: str, *, worker_failures: Mapping[int, BaseException] | None = None, path: str = ""):
        super().__init__(message)
        self.worker_failures: dict[int, BaseException] = dict(worker_failures or {})
        self.path = path


class WorkerGroupError(TrainingFailedError):
    """The worker group failed more often than the run's ``FailureConfig`` allows."""


class ControllerError(TrainingFailedError):
    """The run failed outside of its workers: its storage, its engine, or shoal itself."""
