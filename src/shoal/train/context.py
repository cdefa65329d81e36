"""What a training function can ask and say: thin functions over the one session of its worker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shoal._worker import session as sessions
from shoal._worker.remote import Remote
from shoal._worker.session import Session
from shoal.train.checkpoint import Checkpoint, checkpoint_at


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


def get_checkpoint() -> Checkpoint | None:
    """Return the newest committed checkpoint of this run, to go on from; ``None`` if there is none yet."""
    place = sessions.current("train.get_checkpoint()").checkpoint
    return checkpoint_at(place) if place is not None else None


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
        return self._session.scratch

    def get_trial_resources(self) -> dict[str, float]:
        """Return what one worker was given."""
        return dict(self._session.task.resources)

    def get_storage(self) -> Any:
        """Return the directory of the run: a ``pathlib.Path``, or a ``UPath`` where it is not on a disk."""
        place = self._session.place
        return place.upath if isinstance(place, Remote) else place

    def get_metadata(self) -> dict[str, Any]:
        """Return the trainer's ``metadata``."""
        return self._session.metadata

    def get_attempt(self) -> int:
        """Return how often the worker group has been started, from 1."""
        return self._session.task.attempt
