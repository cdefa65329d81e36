"""Scoring committed checkpoints on workers of their own, while training goes on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal._core.failure import FailurePolicy
from shoal._core.job import Job
from shoal._worker.plain import plain
from shoal._worker.remote import Remote
from shoal.train.config import ScalingConfig
from shoal.train.context import get_checkpoint
from shoal.train.plain import PlainFramework
from shoal.train.validation_task import ValidationTaskConfig

ValidationFn = Callable[..., Mapping[str, Any]]


@dataclass(frozen=True)
class ValidationConfig:
    """What scores the checkpoints that are reported with ``validation=True``.

    The function runs on workers of its own once a checkpoint is committed, one checkpoint at a time, while training
    goes on. What it returns joins the metrics of that checkpoint and counts for which ones are kept. If it fails, the
    checkpoint stays as it is, and that is said.

    Parameters
    ----------
    fn : callable
        Takes a :class:`Checkpoint` and keyword arguments, and returns a mapping of metrics. With several workers, what
        rank 0 returns counts.
    task_config : ValidationTaskConfig, optional
        What holds for every checkpoint; a report's own goes before it.
    ray_remote_kwargs : mapping, optional
        ``num_cpus``, ``num_gpus`` and ``resources`` of the one worker, so that scripts move over.
    scaling_config : ScalingConfig, optional
        The workers; one by default.

    Examples
    --------
    >>> from shoal import train
    >>> def score(checkpoint, scale=1):
    ...     with checkpoint.as_directory() as directory:
    ...         return {"accuracy": 0.9 * scale}
    >>> config = train.ValidationConfig(score)
    """

    fn: ValidationFn
    task_config: ValidationTaskConfig | None = None
    ray_remote_kwargs: Mapping[str, Any] | None = None
    scaling_config: ScalingConfig | None = None

    def __post_init__(self) -> None:
        if not callable(self.fn):
            raise TypeError(f"ValidationConfig(fn={self.fn!r}): give a function that takes a checkpoint")
        if self.scaling_config is not None and self.ray_remote_kwargs:
            raise ValueError("give the workers of a validation by scaling_config or by ray_remote_kwargs, not by both")

    def job(self, name: str, checkpoint: Path | Remote, task: Mapping[str, Any], storage_path: str) -> Job:
        """Return what is to be run to score a checkpoint, ``task`` being a report's :class:`ValidationTaskConfig`."""
        common = (self.task_config or ValidationTaskConfig()).described()["fn_kwargs"]
        return Job(
            function=_score,
            takes_config=True,
            config={"fn": self.fn, "fn_kwargs": {**common, **task["fn_kwargs"]}},
            framework=PlainFramework(),
            request=self._scaling().request(),
            name=name,
            storage_path=storage_path,
            start_checkpoint=checkpoint,
            failure=FailurePolicy(max_failures=0),
            verbose=0,
            show_ranks=(),
        )

    def timeout(self, task: Mapping[str, Any]) -> float | None:
        """Return after how many seconds the scoring of a checkpoint is given up."""
        own: float | None = task["timeout_s"]
        return own if own is not None or self.task_config is None else self.task_config.timeout_s

    def _scaling(self) -> ScalingConfig:
        if self.scaling_config is not None:
            return self.scaling_config
        asked = dict(self.ray_remote_kwargs or {})
        resources = {"CPU": asked.get("num_cpus"), "GPU": asked.get("num_gpus"), **asked.get("resources", {})}
        given = {name: amount for name, amount in resources.items() if amount}
        return ScalingConfig(num_workers=1, use_gpu="GPU" in given, resources_per_worker=given or None)


def _score(config: dict[str, Any]) -> dict[str, Any]:
    """Call the validation function in a worker, and return what it found as plain data."""
    checkpoint = get_checkpoint()
    if checkpoint is None:
        raise AssertionError("a validation begins from a checkpoint")
    metrics = config["fn"](checkpoint, **config["fn_kwargs"])
    if not isinstance(metrics, Mapping):
        raise TypeError(f"the validation function returned {metrics!r}, a {type(metrics).__name__}, not a mapping")
    return plain(dict(metrics))
