"""What ``fit()`` returns."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal._core import jsonl
from shoal._core.errors import TrainingFailedError
from shoal._core.records import Attempt, History
from shoal._core.retention import CheckpointPolicy, CommittedCheckpoint, lookup, policy_of, ranked
from shoal._runtime.directory import records_of
from shoal._runtime.journal import read_history
from shoal._runtime.resume import effective_rows
from shoal._worker.remote import Remote, locate, within
from shoal.train.checkpoint import Checkpoint, checkpoint_at

if TYPE_CHECKING:
    import pandas as pd
    from upath import UPath


@dataclass(frozen=True, kw_only=True)
class Result:
    """How a run ended.

    Attributes
    ----------
    metrics : dict
        The last report of rank 0, with ``training_iteration`` (the number of the report), ``timestamp`` (seconds since
        the epoch), ``time_total_s``, ``attempt``, and where batches were measured ``data_wait_share`` (for how much of
        the time since the report before, from 0 to 1, training has waited for them). Empty if nothing was reported.
    checkpoint : Checkpoint or None
        The newest committed checkpoint.
    best_checkpoints : list of (Checkpoint, dict)
        All kept checkpoints with their metrics: the best first by the run's score attribute, else the newest first.
    path : str
        The directory of the run.
    error : Exception or None
        Why the run failed.
    config : dict
        The configuration that the function got.
    return_value : object
        What the function returned on rank 0.
    attempts : list of Attempt
        Every start of the worker group: ``number``, ``world_size``, ``started_at`` and ``ended_at`` (seconds since the
        epoch), ``reason`` of its end, and ``checkpoint``, the report whose checkpoint it began from (0 for none).
    interrupted : bool
        Whether the run was stopped before its function had returned.
    storage_filesystem : object
        What reaches ``path``, where that is not on a disk of this machine.
    """

    metrics: dict[str, Any]
    path: str
    checkpoint: Checkpoint | None = None
    best_checkpoints: list[tuple[Checkpoint, dict[str, Any]]] = field(default_factory=list)
    error: Exception | None = None
    config: dict[str, Any] = field(default_factory=dict)
    return_value: Any = None
    attempts: list[Attempt] = field(default_factory=list)
    interrupted: bool = False
    storage_filesystem: Any = field(default=None, repr=False, compare=False)

    @property
    def _place(self) -> Path | Remote:
        return locate(self.path, self.storage_filesystem)

    @property
    def filesystem(self) -> Any:
        """The fsspec file system in which ``path`` lies."""
        if self.storage_filesystem is not None:
            return self.storage_filesystem
        from fsspec.implementations.local import LocalFileSystem

        return LocalFileSystem()

    @property
    def metrics_dataframe(self) -> pd.DataFrame:
        """All reports of rank 0 as a pandas frame, a row each.

        Reports of an attempt that a later one made again, since it began from an earlier checkpoint, are left out.
        """
        try:
            import pandas as pd
        except ImportError as error:
            raise ImportError('metrics_dataframe needs pandas: pip install "shoal[pandas]"') from error
        with records_of(self._place) as records:
            return pd.json_normalize(effective_rows(records), sep="/")

    def get_best_checkpoint(self, metric: str, mode: str) -> Checkpoint | None:
        """Return the kept checkpoint with the best value of a metric (``"eval/acc"`` for nested ones).

        Raises
        ------
        ValueError
            If ``mode`` is neither ``"max"`` nor ``"min"``, or no kept checkpoint has the metric.
        """
        if mode not in {"max", "min"}:
            raise ValueError(f"mode={mode!r}: choose 'max' or 'min'")
        if not self.best_checkpoints:
            return None
        if all(lookup(metrics, metric) is None for _, metrics in self.best_checkpoints):
            known = sorted({key for _, metrics in self.best_checkpoints for key in metrics})
            raise ValueError(f"no checkpoint has the metric {metric!r}; their metrics are: {', '.join(known)}")
        candidates = [
            CommittedCheckpoint(n=-place, name=str(checkpoint), metrics=metrics)
            for place, (checkpoint, metrics) in enumerate(self.best_checkpoints)
        ]
        best = ranked(candidates, CheckpointPolicy(score_attribute=metric, score_order=mode))[0]
        return self.best_checkpoints[-best.n][0]

    @classmethod
    def from_path(cls, path: str | os.PathLike[str] | UPath, storage_filesystem: Any = None) -> Result:
        """Return the result of a run from its directory. Only JSON is read: nothing in it is executed.

        Parameters
        ----------
        path : str or path
            The directory: a path, a URL such as ``s3://bucket/runs/mine``, or a ``UPath``.
        storage_filesystem : optional
            An fsspec or pyarrow file system in which the path lies.

        Raises
        ------
        StorageError
            If there is no run at this path.
        """
        place = locate(path, storage_filesystem)
        with records_of(place) as records:
            return _read_result(place, records)


def _read_result(place: Path | Remote, directory: Path) -> Result:
    """Return the result of the run that lies at ``place``, from a copy of its records in ``directory``."""
    ended = directory / "result.json"
    end: dict[str, Any] = jsonl.decode(ended.read_bytes()) if ended.exists() else {}
    rows = effective_rows(directory)
    error = None
    if end.get("state") == "FAILED":
        failures = end.get("failures") or [{}]
        cause = (failures[0].get("error") or {}).get("traceback", "")
        error = TrainingFailedError(f"the run failed: {end.get('reason', '')}\n{cause}".strip(), path=str(place))
    params = directory / "params.json"
    described = jsonl.decode((directory / "run.json").read_bytes())
    return build_result(
        place,
        read_history(directory / "journal.jsonl"),
        policy_of(described),
        metrics=end.get("metrics") or (rows[-1] if rows else {}),
        error=error,
        config=jsonl.decode(params.read_bytes()) if params.exists() else {},
        interrupted=end.get("state", "STOPPED") == "STOPPED",
    )


def build_result(place: Path | Remote, history: History, policy: CheckpointPolicy, **fields: Any) -> Result:
    """Return a result whose checkpoints are those that the journal says are kept."""
    root = place / "checkpoints"
    newest = max(history.checkpoints, key=lambda c: c.n, default=None)
    return Result(
        path=str(place),
        checkpoint=checkpoint_at(within(root, newest.name)) if newest else None,
        attempts=list(history.attempts),
        best_checkpoints=[
            (checkpoint_at(within(root, c.name)), c.metrics) for c in ranked(history.checkpoints, policy)
        ],
        storage_filesystem=place.filesystem if isinstance(place, Remote) else None,
        **fields,
    )
