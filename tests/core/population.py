"""What a scheduler sees of an experiment, for tests of schedulers alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shoal._core.trial_table import WAITING
from shoal._core.trials import Trial, TrialScheduler, TrialStatus


class Population:
    """Trials without an experiment: what a scheduler sees, and what it wanted."""

    def __init__(self, scheduler: TrialScheduler, count: int, config: Any = lambda number: {}):
        self.scheduler = scheduler
        self.trials = [Trial(f"t{number}", config(number)) for number in range(count)]
        self.clones: list[tuple[str, str, dict[str, Any]]] = []
        self.stopped: list[str] = []
        for trial in self.trials:
            trial.status, trial.saved_at = TrialStatus.RUNNING, 1
            scheduler.on_trial_add(self, trial)

    def get_trials(self) -> list[Trial]:
        return self.trials

    def get_live_trials(self) -> list[Trial]:
        return [trial for trial in self.trials if not trial.finished]

    def get_waiting_trials(self) -> list[Trial]:
        return [trial for trial in self.trials if trial.status in WAITING]

    def clone(self, trial: Trial, source: Trial, config: Mapping[str, Any]) -> None:
        self.clones.append((trial.trial_id, source.trial_id, dict(config)))
        trial.config = dict(config)

    def stop_trial(self, trial: Trial) -> None:
        self.stopped.append(trial.trial_id)

    def report(self, number: int, time: float, value: Any, key: str = "x") -> str:
        trial = self.trials[number]
        trial.last_result = {"training_iteration": time, "time_total_s": time, key: value}
        decision = self.scheduler.on_trial_result(self, trial, trial.last_result)
        if decision == TrialScheduler.STOP:
            trial.status = TrialStatus.TERMINATED
        if decision == TrialScheduler.PAUSE:
            trial.status = TrialStatus.PAUSED
        return decision
