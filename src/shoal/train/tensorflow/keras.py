"""A callback for Keras that reports epochs, with the model as the checkpoint."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from shoal.train.checkpoint import Checkpoint
from shoal.train.chosen import Chosen
from shoal.train.context import get_context
from shoal.train.reporting import report

__all__ = ["ReportCheckpointCallback"]

WHEN = ("epoch_end", "train_batch_end", "test_end", "train_end")


class ReportCheckpointCallback(tf.keras.callbacks.Callback):  # type: ignore[misc]
    """Reports Keras' logs, and the model in ``model.keras``, at the end of each epoch.

    Parameters
    ----------
    checkpoint_on, report_metrics_on : str or sequence of str
        When: ``"epoch_end"`` (the default), ``"train_batch_end"``, ``"test_end"``, ``"train_end"``. At a time that is
        only in ``checkpoint_on`` the last logs are reported with the checkpoint.
    metrics : str, sequence of str or mapping, optional
        Which of the logs are reported; a mapping gives them other names. All by default.
    """

    def __init__(
        self,
        checkpoint_on: str | Sequence[str] = "epoch_end",
        report_metrics_on: str | Sequence[str] = "epoch_end",
        metrics: str | Sequence[str] | Mapping[str, str] | None = None,
    ):
        super().__init__()
        self._saves = _times("checkpoint_on", checkpoint_on)
        self._reports = _times("report_metrics_on", report_metrics_on)
        self._chosen = Chosen(metrics)
        self._last: dict[str, Any] = {}

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Report an epoch."""
        self._at("epoch_end", logs, epoch=epoch)

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Report a step."""
        self._at("train_batch_end", logs, batch=batch)

    def on_test_end(self, logs: dict[str, Any] | None = None) -> None:
        """Report an evaluation."""
        self._at("test_end", logs)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Report the end."""
        self._at("train_end", logs)

    def _at(self, when: str, logs: dict[str, Any] | None, **counted: int) -> None:
        if when not in self._reports | self._saves:
            return
        self._last = {**self._numbers(logs), **counted} if logs else self._last
        if when not in self._saves:
            report(self._last)
            return
        with tempfile.TemporaryDirectory() as directory:
            self.model.save(Path(directory, "model.keras"))  # all ranks: TensorFlow may exchange values for it
            first = get_context().get_world_rank() == 0
            report(self._last, checkpoint=Checkpoint(directory) if first else None)

    def _numbers(self, logs: dict[str, Any]) -> dict[str, float]:
        return {name: float(value) for name, value in self._chosen.of(logs, "Keras logs").items()}


RayTrainReportCallback = ReportCheckpointCallback


def _times(name: str, given: str | Sequence[str]) -> set[str]:
    times = {given} if isinstance(given, str) else set(given)
    unknown = times.difference(WHEN)
    if unknown:
        raise ValueError(f"{name} has {min(unknown)!r}: choose from {', '.join(WHEN)}")
    return times
