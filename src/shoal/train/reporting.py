"""How a training function reports: metrics, and checkpoints in every way of storing them."""

from __future__ import annotations

import enum
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal._worker import session as sessions
from shoal._worker.task import Saved, StopTraining
from shoal.train.checkpoint import Checkpoint, checked_name, checkpoint_at, local_directory
from shoal.train.validation_task import ValidationTaskConfig


class CheckpointUploadMode(enum.StrEnum):
    """How :func:`report` stores the files: before it returns, meanwhile, or not at all, since they are stored."""

    SYNC = "SYNC"
    ASYNC = "ASYNC"
    NO_UPLOAD = "NO_UPLOAD"


UploadFunction = Callable[[Checkpoint, str], Checkpoint]


def report(  # noqa: PLR0917  the order is the one that scripts bring along
    metrics: Mapping[str, Any],
    checkpoint: Checkpoint | None = None,
    checkpoint_dir_name: str | None = None,
    checkpoint_upload_mode: CheckpointUploadMode = CheckpointUploadMode.SYNC,
    delete_local_checkpoint_after_upload: bool | None = None,
    checkpoint_upload_fn: UploadFunction | None = None,
    validation: bool | ValidationTaskConfig = False,
    *,
    replicated: bool | None = None,
) -> None:
    """Report metrics, and with them a checkpoint.

    Does not wait for other ranks. Every rank should report the same number of times: the n-th reports of all ranks
    belong together, and a checkpoint is committed once every rank has delivered its part of the same report. Returns
    when the rank's own files of a checkpoint are stored; once that has returned on the last rank, the checkpoint is not
    lost, whichever process dies. After a stop request it does not return: the function ends.

    Parameters
    ----------
    metrics : mapping of str to plain data
        Python, NumPy or 0-d tensor numbers, texts, booleans, ``None``, lists and dicts of them. Rank 0's are kept.
    checkpoint : Checkpoint, optional
        A directory of files. They are copied, and may be changed after the call. A file that several ranks have under
        the same name is stored once, from the lowest of them.
    checkpoint_dir_name : str, optional
        The name of the checkpoint's directory; ``checkpoint_000003`` for the third report by default.
    checkpoint_upload_mode : CheckpointUploadMode
        ``SYNC`` returns when this rank's files are stored. ``ASYNC`` returns at once and stores them meanwhile, at most
        two checkpoints at a time; until they are stored, the files must not be changed. What goes wrong is raised by a
        later report, or at the end of the function. ``NO_UPLOAD`` stores nothing: the checkpoint lies where it is to
        stay, on storage that all machines reach, and is kept and passed on from there.
    delete_local_checkpoint_after_upload : bool, optional
        Whether the directory is removed once its files are stored; by default in asynchronous mode, where nobody else
        knows when that is.
    checkpoint_upload_fn : callable, optional
        Stores the files in place of shoal: takes the checkpoint and the name of its directory, and returns the
        checkpoint where it has stored it. Called in this process, in the background in asynchronous mode.
    validation : bool or ValidationTaskConfig
        Whether the checkpoint is scored by the trainer's ``validation_config`` once it is committed, while training
        goes on; see :class:`ValidationConfig`.
    replicated : bool, optional
        Whether every rank that reports a checkpoint has the whole of it, as with data parallelism, so that those that
        survive the loss of a rank can still commit theirs. ``False`` says that every rank's part is needed. By default,
        files of the same names on two ranks or more are taken for replicas, and all else for shards.

    Raises
    ------
    TypeError
        If a metric is not plain data; the message names its key.
    OutsideWorkerError
        If this is not a worker.
    StorageError
        If the files cannot be stored.

    Examples
    --------
    >>> from shoal import train
    >>> def train_func(config):
    ...     for epoch in range(3):
    ...         train.report({"epoch": epoch, "loss": 1 / (epoch + 1)})
    """
    session = sessions.current("train.report()")
    values = metrics if isinstance(metrics, dict) or not isinstance(metrics, Mapping) else dict(metrics)
    if checkpoint is None:
        if validation:
            raise ValueError("report(validation=...) needs a checkpoint, which is what is scored")
        session.report(values)
        return
    if not isinstance(checkpoint, Checkpoint):
        raise TypeError(
            f"checkpoint={checkpoint!r} is a {type(checkpoint).__name__}; give train.Checkpoint.from_directory(path)"
        )
    mode = CheckpointUploadMode(checkpoint_upload_mode)
    name = checked_name(checkpoint_dir_name)
    store = _way_of_storing(checkpoint, mode, checkpoint_upload_fn, name or f"checkpoint_{session.reports + 1:06d}")
    delete = delete_local_checkpoint_after_upload
    session.report(
        values,
        Saved(
            directory=local_directory(checkpoint) if store is None else _local_directory_or_none(checkpoint),
            name=name,
            wait=mode is not CheckpointUploadMode.ASYNC,
            delete_source=mode is CheckpointUploadMode.ASYNC if delete is None else bool(delete),
            store=store,
            replicated=replicated,
            validation=_validation(validation),
        ),
    )


def _way_of_storing(
    checkpoint: Checkpoint, mode: CheckpointUploadMode, upload: UploadFunction | None, name: str
) -> Callable[[], str] | None:
    """Return what stores a checkpoint in place of shoal and says where, if anything does."""
    if mode is CheckpointUploadMode.NO_UPLOAD:
        if upload is not None:
            raise ValueError("checkpoint_upload_fn is given, but NO_UPLOAD says that nothing is to be stored")
        return lambda: str(checkpoint.place)
    if upload is None:
        return None
    return lambda: _stored_with(upload, checkpoint, name)


def _stored_with(upload: UploadFunction, checkpoint: Checkpoint, name: str) -> str:
    stored = upload(checkpoint, name)
    if not isinstance(stored, Checkpoint):
        raise TypeError(
            f"checkpoint_upload_fn returned {stored!r}, a {type(stored).__name__}; it has to return the "
            "train.Checkpoint where it has stored the files"
        )
    return str(stored.place)


def _local_directory_or_none(checkpoint: Checkpoint) -> Path | None:
    return checkpoint.path if isinstance(checkpoint.path, Path) else None


def _validation(asked: bool | ValidationTaskConfig) -> dict[str, Any] | None:
    """Return, as plain data, how a checkpoint is to be scored."""
    if asked is False:
        return None
    task = ValidationTaskConfig() if asked is True else asked
    if not isinstance(task, ValidationTaskConfig):
        raise TypeError(f"validation={asked!r}: give True, False or a train.ValidationTaskConfig")
    return task.described()


@contextmanager
def checkpoint_dir() -> Iterator[Path]:
    """Yield a directory for the files of the next checkpoint, in the very place where checkpoints are kept.

    Files written there are not copied again when they are reported: the commit is a rename. The directory belongs to
    shoal once it was reported; if the block raises before that, it is removed.

    Examples
    --------
    >>> from shoal import train
    >>> def train_func():
    ...     with train.checkpoint_dir() as directory:
    ...         (directory / "model.txt").write_text("weights")
    ...         train.report({"loss": 0.5}, checkpoint=train.Checkpoint.from_directory(directory))
    """
    directory = sessions.current("train.checkpoint_dir()").own_directory()
    try:
        yield directory
    except BaseException as error:
        if not isinstance(error, StopTraining):  # after a report, which may still be moving the files
            shutil.rmtree(directory, ignore_errors=True)
        raise


class CheckpointConsistencyMode(enum.StrEnum):
    """What :func:`get_all_reported_checkpoints` waits for: that checkpoints are committed, or scored as well."""

    COMMITTED = "COMMITTED"
    VALIDATED = "VALIDATED"


class ReportedCheckpointStatus(enum.StrEnum):
    """How far a kept checkpoint has come."""

    COMMITTED = "COMMITTED"
    PENDING_VALIDATION = "PENDING_VALIDATION"
    VALIDATED = "VALIDATED"


@dataclass(frozen=True)
class ReportedCheckpoint:
    """A kept checkpoint of this run.

    Attributes
    ----------
    checkpoint : Checkpoint
        The checkpoint.
    metrics : dict
        What rank 0 reported with it, and what its validation has found.
    status : ReportedCheckpointStatus
        Whether it is committed only, waits for its validation, or has been validated.
    """

    checkpoint: Checkpoint
    metrics: dict[str, Any]
    status: ReportedCheckpointStatus


def get_all_reported_checkpoints(
    consistency_mode: CheckpointConsistencyMode = CheckpointConsistencyMode.VALIDATED,
    timeout_s: float | None = None,
) -> list[ReportedCheckpoint]:
    """Return the kept checkpoints of this run, the oldest first.

    Waits until every rank has made as many reports as this one, and their checkpoints are committed and, by default,
    those are scored that were to be.

    Parameters
    ----------
    consistency_mode : CheckpointConsistencyMode
        What is waited for.
    timeout_s : float, optional
        For how many seconds at most; without end by default.

    Raises
    ------
    TimeoutError
        If it takes longer.
    OutsideWorkerError
        If this is not a worker.

    Examples
    --------
    >>> from shoal import train
    >>> def train_func():
    ...     best = max(train.get_all_reported_checkpoints(), key=lambda c: c.metrics["accuracy"])
    """
    session = sessions.current("train.get_all_reported_checkpoints()")
    scored = CheckpointConsistencyMode(consistency_mode) is CheckpointConsistencyMode.VALIDATED
    return [
        ReportedCheckpoint(checkpoint_at(session.where(kept.name)), kept.metrics, ReportedCheckpointStatus(kept.status))
        for kept in session.kept_checkpoints(scored, timeout_s)
    ]
