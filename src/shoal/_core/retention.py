"""Which checkpoints are kept, and which is the best."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from shoal._core.messages import FileEntry


class CheckpointPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How many checkpoints are kept, and by which score; without a score the newest are kept."""

    num_to_keep: int | None = None
    score_attribute: str | None = None
    score_order: str = "max"


def policy_of(asked: Mapping[str, Any]) -> CheckpointPolicy:
    """Return how the checkpoints of a run are compared, from what was written down of what was asked."""
    kept = (asked.get("run_config") or {}).get("checkpoint_config") or {}
    return CheckpointPolicy(
        score_attribute=kept.get("checkpoint_score_attribute"), score_order=kept.get("checkpoint_score_order", "max")
    )


class CommittedCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint that is whole: its report, its attempt, its directory's name, rank 0's metrics of that report.

    ``staging`` and ``files`` are what its commit was about to do, for a driver that finds it half done. ``validation``
    says how it is to be scored as long as it is not; ``scored`` whether it was.
    """

    n: int
    name: str
    attempt: int = 0
    metrics: dict[str, Any]
    staging: str = ""
    files: list[FileEntry] = []
    validation: dict[str, Any] | None = None
    scored: bool = False

    def validated(self, metrics: Mapping[str, Any]) -> CommittedCheckpoint:
        """Return it with the metrics that its validation has found."""
        return msgspec.structs.replace(self, metrics={**self.metrics, **metrics}, validation=None, scored=True)

    @property
    def status(self) -> str:
        """How far it has come, for people."""
        if self.validation is not None:
            return "PENDING_VALIDATION"
        return "VALIDATED" if self.scored else "COMMITTED"


def lookup(metrics: Mapping[str, Any], key: str) -> Any:
    """Find a metric by its name, or by a path through nested metrics (``"eval/acc"``); ``None`` where it is missing."""
    if key in metrics:
        return metrics[key]
    head, _, rest = key.partition("/")
    inner = metrics.get(head)
    return lookup(inner, rest) if rest and isinstance(inner, Mapping) else None


def score(metrics: Mapping[str, Any], attribute: str, order: str) -> float:
    """Return a score of which more is better; missing, NaN and non-numeric values rank below every number."""
    value = lookup(metrics, attribute)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or math.isnan(value):
        return -math.inf
    return float(value) if order == "max" else -float(value)


def ranked(checkpoints: Sequence[CommittedCheckpoint], policy: CheckpointPolicy) -> list[CommittedCheckpoint]:
    """Return the checkpoints with the best first; of equals, and without a score, the newest first."""
    newest_first = sorted(checkpoints, key=lambda c: -c.n)
    attribute = policy.score_attribute
    if attribute is None:
        return newest_first
    has_value = {c.n: isinstance(lookup(c.metrics, attribute), (int, float)) for c in newest_first}
    return sorted(
        newest_first, key=lambda c: (score(c.metrics, attribute, policy.score_order), has_value[c.n]), reverse=True
    )


def superfluous(checkpoints: Sequence[CommittedCheckpoint], policy: CheckpointPolicy) -> list[CommittedCheckpoint]:
    """Return what may be deleted: never the newest, since a restart begins there, nor what is still to be scored."""
    if policy.num_to_keep is None or not checkpoints:
        return []
    keep = {c.n for c in ranked(checkpoints, policy)[: policy.num_to_keep]}
    keep.add(max(c.n for c in checkpoints))
    return [c for c in checkpoints if c.n not in keep and c.validation is None]
