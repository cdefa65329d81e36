"""Trials that are given more or less of the machine while the search goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shoal._core.trials import Trial, Trials, TrialScheduler

Allocation = Callable[[Trials, Trial, dict[str, Any], "ResourceChangingScheduler"], dict[str, float] | None]


def evenly(
    tune_controller: Trials, trial: Trial, result: dict[str, Any], scheduler: ResourceChangingScheduler
) -> dict[str, float] | None:
    """Give each living trial the same share of all CPUs and GPUs, in whole numbers, and not less than it has."""
    living = max(1, len(tune_controller.get_live_trials()))
    share = {name: float(int(tune_controller.total_resources.get(name, 0.0) // living)) for name in ("CPU", "GPU")}
    before = trial.resources or {}
    wanted = {name: max(amount, before.get(name, 0.0)) for name, amount in share.items() if amount}
    return wanted or None


class ResourceChangingScheduler(TrialScheduler):
    """Lets another scheduler decide, and after each of its decisions to go on may give the trial other resources.

    A trial whose resources change is paused and goes on from its newest checkpoint with the new ones; a trial without a
    checkpoint keeps what it has.

    Parameters
    ----------
    base_scheduler : TrialScheduler, optional
        What decides; every trial goes on by default.
    resources_allocation_function : callable
        Takes the experiment, the trial, its report and this scheduler, and returns ``{"CPU": 2, ...}``, or ``None`` to
        leave it as it is. By default all share the machine :func:`evenly`.
    """

    def __init__(
        self,
        base_scheduler: TrialScheduler | None = None,
        resources_allocation_function: Allocation | None = None,
    ):
        from shoal.tune.schedulers.fifo import FIFOScheduler

        super().__init__()
        self.base = base_scheduler or FIFOScheduler()
        self._allocate = resources_allocation_function or evenly

    @property
    def metric(self) -> str | None:
        return self.base.metric

    @property
    def mode(self) -> str | None:
        return self.base.mode

    @property
    def needs_metric(self) -> bool:  # type: ignore[override]
        return self.base.needs_metric

    @property
    def ahead(self) -> bool:  # type: ignore[override]
        return self.base.ahead

    def set_search_properties(self, metric: str | None, mode: str | None, **spec: Any) -> bool:
        return self.base.set_search_properties(metric, mode, **spec)

    def on_trial_add(self, tune_controller: Trials, trial: Trial) -> None:
        self.base.on_trial_add(tune_controller, trial)

    def on_trial_result(self, tune_controller: Trials, trial: Trial, result: dict[str, Any]) -> str:
        verdict = self.base.on_trial_result(tune_controller, trial, result)
        if verdict != self.CONTINUE or not trial.has_checkpoint:
            return verdict
        wanted = self._allocate(tune_controller, trial, result, self)
        if wanted is None or wanted == trial.resources:
            return verdict
        tune_controller.reallocate(trial, wanted)
        return self.PAUSE

    def on_trial_complete(self, tune_controller: Trials, trial: Trial, result: dict[str, Any]) -> None:
        self.base.on_trial_complete(tune_controller, trial, result)

    def on_trial_error(self, tune_controller: Trials, trial: Trial) -> None:
        self.base.on_trial_error(tune_controller, trial)

    def on_trial_remove(self, tune_controller: Trials, trial: Trial) -> None:
        self.base.on_trial_remove(tune_controller, trial)

    def on_no_available_trials(self, tune_controller: Trials) -> None:
        self.base.on_no_available_trials(tune_controller)

    def choose_trial_to_run(self, tune_controller: Trials) -> Trial | None:
        return self.base.choose_trial_to_run(tune_controller)
