"""The errors that shoal raises, under one root: :class:`ShoalError`."""

from shoal._core.errors import (
    ControllerError,
    InfeasibleRequest,
    OutsideWorkerError,
    RemoteError,
    RunExists,
    ShoalError,
    StorageError,
    TrainingFailedError,
    UnpicklableError,
    WorkerDied,
    WorkerGroupError,
)

__all__ = [
    "ControllerError",
    "InfeasibleRequest",
    "OutsideWorkerError",
    "RemoteError",
    "RunExists",
    "ShoalError",
    "StorageError",
    "TrainingFailedError",
    "UnpicklableError",
    "WorkerDied",
    "WorkerGroupError",
]
