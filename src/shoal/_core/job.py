"""What a trainer hands to the driver: everything about one ``fit()``, frozen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from shoal._core.contracts import Callback, Framework
from shoal._core.failure import FailurePolicy
from shoal._core.retention import CheckpointPolicy
from shoal._core.scaling import GroupRequest


@dataclass(frozen=True, kw_only=True)
class Job:
    """One ``fit()``, as asked.

    ``show_ranks`` says whose output appears on the console: a list of ranks, or ``None`` for all of them.
    """

    function: Callable[..., Any]
    takes_config: bool
    config: dict[str, Any]
    framework: Framework
    request: GroupRequest
    name: str
    storage_path: Any = None
    storage_filesystem: Any = None
    resume: bool | str = False
    failure: FailurePolicy = field(default_factory=FailurePolicy)
    checkpoint: CheckpointPolicy = field(default_factory=CheckpointPolicy)
    start_checkpoint: Any = None
    validation: Any = None
    room_wait: float = 5.0
    resize_interval: float = 60.0
    callbacks: Sequence[Callback] = ()
    datasets: Any = None
    verbose: int = 1
    show_ranks: Sequence[int] | None = (0,)
    metadata: dict[str, Any] = field(default_factory=dict)
    asked: dict[str, Any] = field(default_factory=dict)
