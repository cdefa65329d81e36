"""What XGBoost and LightGBM have in common: boosters in checkpoints, and what their callbacks report."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from shoal.train.checkpoint import Checkpoint
from shoal.train.chosen import Chosen
from shoal.train.context import get_context
from shoal.train.reporting import report


class BoosterReports:
    """Reports evaluations after each round, and boosters as checkpoints from rank 0, since all ranks have the same.

    Parameters
    ----------
    metrics : str, list of str, mapping, optional
        Which of the evaluations are reported, as in ``"valid-logloss"``; a mapping gives them other names. All by
        default.
    filename : str
        The name of the booster's file in the checkpoint.
    frequency : int
        After how many rounds a checkpoint is reported; 0 for none before the end.
    checkpoint_at_end : bool
        Whether the booster is reported when training ends.
    results_postprocessing_fn : callable, optional
        Makes of the evaluations what is reported.
    """

    def __init__(
        self,
        metrics: str | list[str] | Mapping[str, str] | None,
        filename: str,
        frequency: int,
        checkpoint_at_end: bool,
        results_postprocessing_fn: Callable[[dict[str, Any]], dict[str, Any]] | None,
    ):
        if frequency < 0:
            raise ValueError(f"frequency={frequency!r}: give a number of rounds, or 0 for none before the end")
        self._chosen = Chosen(metrics)
        self.filename, self._frequency, self._at_end = filename, frequency, checkpoint_at_end
        self._shaped = results_postprocessing_fn or (lambda found: found)
        self._last: dict[str, Any] = {}
        self._saved = False

    def round_over(self, number: int, found: dict[str, Any], save: Callable[[str], Any]) -> None:
        """Report the ``number``-th round, counted from 0, with a checkpoint if it is time for one."""
        self._last = self._shaped(self._chosen.of(found, "evaluated are"))
        self._saved = bool(self._frequency) and (number + 1) % self._frequency == 0
        self._report(save if self._saved else None)

    def training_over(self, save: Callable[[str], Any]) -> None:
        """Report the booster, unless the last round did."""
        if self._at_end and not self._saved:
            self._report(save)

    def _report(self, save: Callable[[str], Any] | None) -> None:
        if save is None or get_context().get_world_rank() != 0:
            report(self._last)
            return
        with tempfile.TemporaryDirectory() as directory:
            save(str(Path(directory, self.filename)))
            report(self._last, checkpoint=Checkpoint(directory))
