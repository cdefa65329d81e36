"""What was asked of a run, as far as decisions depend on it."""

from __future__ import annotations

import msgspec

from shoal._core.failure import FailurePolicy
from shoal._core.retention import CheckpointPolicy
from shoal._core.scaling import GroupRequest


class RunSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked of a run, as far as decisions depend on it.

    ``room_wait`` is how many seconds a run with a range of workers waits for room for the largest number before it
    takes what there is; ``resize_interval`` how many seconds lie at least between two changes of its size; ``renames``
    whether the storage makes a checkpoint visible by a rename.
    """

    request: GroupRequest
    failure: FailurePolicy = FailurePolicy()
    checkpoint: CheckpointPolicy = CheckpointPolicy()
    start_checkpoint: str | None = None
    room_wait: float = 5.0
    resize_interval: float = 60.0
    renames: bool = True
