"""The scheduler that lets every trial run to its end, in the order in which they were made."""

from __future__ import annotations

from typing import Any

from shoal._core.trials import Trial, Trials, TrialScheduler


class FIFOScheduler(TrialScheduler):
    """Lets every trial run to its end. Reports do not wait for it.

    Examples
    --------
    >>> from shoal.tune.schedulers import FIFOScheduler
    >>> FIFOScheduler().decides
    False
    """

    decides = False

    def __init__(self) -> None:
        super().__init__()

    def on_trial_result(self, tune_controller: Trials, trial: Trial, result: dict[str, Any]) -> str:
        return self.CONTINUE
