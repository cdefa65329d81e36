"""What a training function can ask and say: thin functions over the one session of its worker."""

from __future__ import annotations

import enum
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal._worker import session as sessions
from shoal._worker.session import Session, StopTraining
from shoal.train.checkpoint import Checkpoint


class CheckpointUploadMode(enum.StrEnum):
    """When :func:`report` returns: after this rank's files are stored, or at once."""

    SYNC = "SYNC"
    ASYNC = "ASYNC"


def report(
    metrics: Mapping[str, Any],
    checkpoint: Checkpoint | None = None,
    checkpoint_dir_name: str | None = None,
    checkpoint_upload_mode: CheckpointUploadMode = CheckpointUploadMode.SYNC,
    delete_local_checkpoint_after_upload: bool | None = None,
) -> None:
    """Report metrics, and with them a checkpoint.

    Does not wait for other ranks. Every rank should report the same number of times: the n-th reports of all ranks
    belong together, and a checkpoint is committed once every rank has delivered its part of the same report. Returns
    when the rank's own files of a checkpoint are stored. After a stop request it does not return: the function ends.

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
        later report, or at the end of the function.
    delete_local_checkpoint_after_upload : bool, optional
        Whether the directory is removed once its files are stored; not by default.

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
    if checkpoint is not None and not isinstance(checkpoint, Checkpoint):
        raise TypeError(
            f"checkpoint={checkpoint!r} is a {type(checkpoint).__name__}; give train.Checkpoint.from_directory(path)"
        )
    if checkpoint_dir_name is not None and (
        Path(checkpoint_dir_name).name != checkpoint_dir_name or checkpoint_dir_name.startswith(".")
    ):
        raise ValueError(f"checkpoint_dir_name={checkpoint_dir_name!r} must be the name of one directory")
    values = metrics if isinstance(metrics, dict) or not isinstance(metrics, Mapping) else dict(metrics)
    session.report(
        values,
        checkpoint.path if checkpoint is not None else None,
        checkpoint_dir_name,
        wait=CheckpointUploadMode(checkpoint_upload_mode) is CheckpointUploadMode.SYNC,
        delete_source=bool(delete_local_checkpoint_after_upload),
    )


@dataclass(frozen=True)
class PreemptionInfo:
    """Workers of this run are about to be taken away.

    Attributes
    ----------
    deadline_ms : int
        When, in milliseconds since the epoch.
    preempted_node_to_ranks : dict[str, list[int]]
        Which ranks, by machine.
    """

    deadline_ms: int
    preempted_node_to_ranks: dict[str, list[int]]


def get_preemption_info() -> PreemptionInfo | None:
    """Return what is known of a preemption of this run; ``None`` as long as there is none.

    The n-th call answers the same on every rank, so it is safe to save a checkpoint and return when it answers. The
    group then starts again, and that counts as a preemption and not as a failure. How long there is for that says
    ``FailureConfig(preemption_grace_s=...)``.

    Examples
    --------
    >>> from shoal import train
    >>> def train_func():
    ...     for step in range(1000):
    ...         if train.get_preemption_info():
    ...             ...  # save, report with the checkpoint
    ...             return
    """
    answer = sessions.current("train.get_preemption_info()").preemption()
    if answer is None:
        return None
    return PreemptionInfo(answer.deadline_ms, {"0": list(answer.ranks)})


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


def get_checkpoint() -> Checkpoint | None:
    """Return the newest committed checkpoint of this run, to go on from; ``None`` if there is none yet."""
    path = sessions.current("train.get_checkpoint()").checkpoint
    return Checkpoint(path) if path is not None else None


def get_context() -> TrainContext:
    """Return the place of this worker in its run."""
    return TrainContext(sessions.current("train.get_context()"))


class TrainContext:
    """The place of a worker in its run; see :func:`get_context`."""

    def __init__(self, session: Session):
        self._session = session

    def get_world_rank(self) -> int:
        """Return the number of this worker among all, from 0."""
        return self._session.ranks.world_rank

    def get_world_size(self) -> int:
        """Return the number of workers."""
        return self._session.ranks.world_size

    def get_local_rank(self) -> int:
        """Return the number of this worker among those on its machine, from 0."""
        return self._session.ranks.local_rank

    def get_local_world_size(self) -> int:
        """Return the number of workers on this machine."""
        return self._session.ranks.local_world_size

    def get_node_rank(self) -> int:
        """Return the number of this machine among those of the run, from 0."""
        return self._session.ranks.node_rank

    def get_experiment_name(self) -> str:
        """Return the name of the run, or of the search that the run belongs to."""
        return self._session.task.run_name

    def get_trial_name(self) -> str:
        """Return the name of the run."""
        return self._session.task.run_name

    def get_trial_id(self) -> str:
        """Return the run's identifier, the same on every rank and in every attempt."""
        return self._session.task.trial_id

    def get_trial_dir(self) -> str:
        """Return a scratch directory of this worker, which is removed with it. Checkpoints are never kept there."""
        os.makedirs(self._session.scratch, exist_ok=True)
        return self._session.scratch

    def get_trial_resources(self) -> dict[str, float]:
        """Return what one worker was given."""
        return dict(self._session.task.resources)

    def get_storage(self) -> Path:
        """Return the directory of the run."""
        return Path(self._session.task.run_path)

    def get_metadata(self) -> dict[str, Any]:
        """Return the trainer's ``metadata``."""
        return self._session.metadata

    def get_attempt(self) -> int:
        """Return how often the worker group has been started, from 1."""
        return self._session.task.attempt
