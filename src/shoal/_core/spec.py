"""What was asked of a run, as far as decisions depend on it."""

from __future__ import annotations

import msgspec

from shoal._core.failure import FailurePolicy
from shoal._core.retention import CheckpointPolicy
from shoal._core.scaling import GroupRequest


class RunSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked of a run, as far as decisions depend on it."""

    request: GroupRequest
    failure: FailurePolicy = FailurePolicy()
    checkpoint: CheckpointPolicy = CheckpointPolicy()
    start_checkpoint: str | None = None
