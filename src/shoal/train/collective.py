"""Small collectives over the control channel, for any framework: to wait for each other, to share a setting.

They are not for tensors: every byte goes through the driver.
"""

from __future__ import annotations

from typing import Any

import cloudpickle

from shoal._worker import session as sessions


def barrier() -> None:
    """Wait until every rank has come here.

    Raises
    ------
    ShoalError
        If a rank has finished and so will never come.
    OutsideWorkerError
        If this is not a worker.
    """
    session = sessions.current("train.collective.barrier()")
    session.gather(session.next_collective(), b"")


def broadcast_from_rank_zero(data: Any) -> Any:
    """Return on every rank what rank 0 gave, anything that can be pickled. Every rank has to call it.

    Raises
    ------
    ShoalError
        If a rank has finished and so will never come.
    OutsideWorkerError
        If this is not a worker.

    Examples
    --------
    >>> from shoal import train
    >>> def train_func():
    ...     seed = train.collective.broadcast_from_rank_zero(42)
    """
    session = sessions.current("train.collective.broadcast_from_rank_zero()")
    offer = cloudpickle.dumps(data) if session.ranks.world_rank == 0 else b""
    gathered = session.gather(session.next_collective(), offer)
    return data if session.ranks.world_rank == 0 else cloudpickle.loads(gathered[0])


def all_gather(data: Any) -> list[Any]:
    """Return on every rank what all of them gave, by rank: anything that can be pickled. Every rank has to call it.

    Raises
    ------
    ShoalError
        If a rank has finished and so will never come.
    OutsideWorkerError
        If this is not a worker.

    Examples
    --------
    >>> from shoal import train
    >>> def train_func():
    ...     hosts = train.collective.all_gather(train.get_context().get_node_rank())
    """
    session = sessions.current("train.collective.all_gather()")
    gathered = session.gather(session.next_collective(), cloudpickle.dumps(data))
    return [cloudpickle.loads(given) for given in gathered]
