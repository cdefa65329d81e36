"""HyperBand: brackets of successive halving, in which trials wait for each other."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from shoal._core.trials import Trial, Trials, TrialScheduler


@dataclass
class Bracket:
    """Trials that compete: ``size`` of them begin, and are cut down each time all have come to the milestone."""

    size: int
    milestone: float
    closed: bool = False
    members: dict[str, float | None] = field(default_factory=dict)  # the score at the milestone; None before

    @property
    def all_there(self) -> bool:
        """Whether every member has come to the milestone."""
        return bool(self.members) and all(score is not None for score in self.members.values())


class HyperBandScheduler(TrialScheduler):
    """Runs brackets of successive halving; in each, trials wait for each other at milestones, and the best go on.

    With ``eta`` the reduction factor and ``s_max = floor(log_eta(max_t))``, bracket ``s`` (from ``s_max`` down to 0)
    begins with ``ceil((s_max + 1) / (s + 1) * eta ** s)`` trials and a milestone of ``max_t * eta ** -s``. When all its
    trials are there, one of ``eta`` goes on, to a milestone ``eta`` times as far. Further trials make further series of
    brackets. Li et al., *Hyperband: A Novel Bandit-Based Approach to Hyperparameter Optimization*, JMLR 2018.

    Trials that wait have no process, so a search ends whatever the concurrency is; without checkpoints they begin anew
    when they go on. A bracket takes no more trials once one of its own has reported.

    Parameters
    ----------
    time_attr : str
        What a milestone is measured in: a key of the reports that only grows.
    metric, mode : str, optional
        What is compared; the experiment's by default.
    max_t : float
        Where a trial ends in any case.
    reduction_factor : float
        Of how many trials one goes on.
    stop_last_trials : bool
        Whether trials end at ``max_t``; if not, they end when their function does.

    Examples
    --------
    >>> from shoal.tune.schedulers import HyperBandScheduler
    >>> HyperBandScheduler(metric="loss", mode="min", max_t=81, reduction_factor=3).plan
    [(81, 1.0), (34, 3.0), (15, 9.0), (8, 27.0), (5, 81)]
    """

    needs_metric = True
    ahead = True

    def __init__(
        self,
        time_attr: str = "training_iteration",
        metric: str | None = None,
        mode: str | None = None,
        max_t: float = 81,
        reduction_factor: float = 3,
        stop_last_trials: bool = True,
    ):
        super().__init__(metric, mode)
        if not max_t > 0:
            raise ValueError(f"max_t={max_t!r}: give more than 0")
        if not reduction_factor > 1:
            raise ValueError(f"reduction_factor={reduction_factor!r}: give more than 1")
        self._time_attr, self._max_t, self._eta = time_attr, max_t, reduction_factor
        self._stop_last = stop_last_trials
        top = math.floor(math.log(max_t, reduction_factor) + 1e-9)
        self.plan = [
            (math.ceil((top + 1) / (s + 1) * reduction_factor**s - 1e-9), max_t * reduction_factor**-s)
            for s in range(top, -1, -1)
        ]
        self._brackets: list[Bracket] = []
        self._bracket_of: dict[str, Bracket] = {}

    def on_trial_add(self, tune_controller: Trials, trial: Trial) -> None:
        current = self._brackets[-1] if self._brackets else None
        if current is None or current.closed or len(current.members) >= current.size:
            current = Bracket(*self.plan[len(self._brackets) % len(self.plan)])
            self._brackets.append(current)
        current.members[trial.trial_id] = None
        self._bracket_of[trial.trial_id] = current

    def on_trial_result(self, tune_controller: Trials, trial: Trial, result: dict[str, Any]) -> str:
        bracket = self._bracket_of[trial.trial_id]
        bracket.closed = True
        time = result[self._time_attr]
        if self._stop_last and time >= self._max_t:
            return self.STOP
        if time < bracket.milestone or bracket.milestone >= self._max_t:
            return self.CONTINUE
        bracket.members[trial.trial_id] = self.score(result)
        if not bracket.all_there:
            return self.PAUSE
        self._cut(tune_controller, bracket, reporting=trial)
        return self.CONTINUE if trial.trial_id in bracket.members else self.STOP

    def on_trial_complete(self, tune_controller: Trials, trial: Trial, result: dict[str, Any]) -> None:
        self._leave(tune_controller, trial)

    def on_trial_error(self, tune_controller: Trials, trial: Trial) -> None:
        self._leave(tune_controller, trial)

    def on_trial_remove(self, tune_controller: Trials, trial: Trial) -> None:
        self._bracket_of[trial.trial_id].members.pop(trial.trial_id, None)

    def choose_trial_to_run(self, tune_controller: Trials) -> Trial | None:
        """Return one of the oldest bracket that does not wait for others: its paused ones first."""
        order = {id(bracket): number for number, bracket in enumerate(self._brackets)}
        free = [t for t in tune_controller.get_waiting_trials() if not self._waits(t)]
        return min(free, key=lambda t: (order[id(self._bracket_of[t.trial_id])], -t.reports), default=None)

    # ---- inside -----------------------------------------------------------------------------------------------------

    def _waits(self, trial: Trial) -> bool:
        return self._bracket_of[trial.trial_id].members.get(trial.trial_id) is not None

    def _leave(self, controller: Trials, trial: Trial) -> None:
        """A trial has ended by itself: those that wait for it need not any longer."""
        bracket = self._bracket_of[trial.trial_id]
        bracket.members.pop(trial.trial_id, None)
        if bracket.all_there:
            self._cut(controller, bracket, reporting=None)

    def _cut(self, controller: Trials, bracket: Bracket, reporting: Trial | None) -> None:
        """Keep the best of a bracket, and set the next milestone."""
        ranking = sorted(bracket.members, key=lambda trial_id: bracket.members[trial_id] or 0.0, reverse=True)
        # A member whose metric is no number goes on only if there is no other.
        keep = max(1, math.floor(len(ranking) / self._eta + 1e-9))
        bracket.milestone = min(bracket.milestone * self._eta, self._max_t)
        losers = set(ranking[keep:])
        bracket.members = dict.fromkeys(ranking[:keep])
        for trial in list(controller.get_live_trials()):
            if trial.trial_id in losers and trial is not reporting:
                controller.stop_trial(trial)
