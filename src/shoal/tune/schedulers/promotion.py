"""Asynchronous successive halving as it was published: trials wait at rungs, and the best are promoted."""

from __future__ import annotations

from typing import Any

from shoal._core.trials import Trial, Trials, TrialScheduler, TrialStatus
from shoal.tune.schedulers.asha import rungs_of


class ASHAPromotionScheduler(TrialScheduler):
    """Pauses every trial at its rung; where there is room, the best one that may be promoted goes on, else a new one.

    Rungs lie at ``grace_period * reduction_factor ** k`` below ``max_t``. A trial may be promoted from a rung if it is
    among the best ``1 / reduction_factor`` of those that have been there; rungs are looked at from the highest down. Li
    et al., *A System for Massively Parallel Hyperparameter Tuning*, MLSys 2020, algorithm 2. In contrast to
    :class:`ASHAScheduler` nothing is lost by judging a trial too early, but trials need checkpoints to go on from.

    Parameters
    ----------
    time_attr : str
        What a rung is measured in: a key of the reports that only grows.
    metric, mode : str, optional
        What is compared; the experiment's by default.
    max_t : float
        Where a trial ends in any case.
    grace_period : float
        The first rung.
    reduction_factor : float
        Of how many trials one is promoted.
    """

    needs_metric = True

    def __init__(
        self,
        time_attr: str = "training_iteration",
        metric: str | None = None,
        mode: str | None = None,
        max_t: float = 100,
        grace_period: float = 1,
        reduction_factor: float = 4,
    ):
        super().__init__(metric, mode)
        if not 0 < grace_period <= max_t:
            raise ValueError(f"grace_period={grace_period!r}: give more than 0 and at most max_t={max_t!r}")
        if not reduction_factor > 1:
            raise ValueError(f"reduction_factor={reduction_factor!r}: give more than 1")
        self._time_attr, self._max_t, self._eta = time_attr, max_t, reduction_factor
        self.rungs = rungs_of(grace_period, max_t, reduction_factor, 0)
        self._scores: list[dict[str, float]] = [{} for _ in self.rungs]

    def on_trial_result(self, tune_controller: Trials, trial: Trial, result: dict[str, Any]) -> str:
        time = result[self._time_attr]
        if time >= self._max_t:
            return self.STOP
        reached = sum(rung <= time for rung in self.rungs)
        if reached == 0 or trial.trial_id in self._scores[reached - 1]:
            return self.CONTINUE
        self._scores[reached - 1][trial.trial_id] = self.score(result)
        return self.PAUSE

    def choose_trial_to_run(self, tune_controller: Trials) -> Trial | None:
        waiting = tune_controller.get_waiting_trials()
        promoted = self._to_promote({t.trial_id: t for t in waiting if t.status is TrialStatus.PAUSED})
        if promoted is not None:
            return promoted
        return next((trial for trial in waiting if trial.status is TrialStatus.PENDING), None)

    def on_no_available_trials(self, tune_controller: Trials) -> None:
        """No trial may be promoted and no new one comes: those that wait are done."""
        for trial in list(tune_controller.get_waiting_trials()):
            tune_controller.stop_trial(trial)

    def _to_promote(self, paused: dict[str, Trial]) -> Trial | None:
        for place in range(len(self.rungs) - 1, -1, -1):
            scores = self._scores[place]
            best = sorted(scores, key=lambda trial_id: scores[trial_id], reverse=True)[: int(len(scores) / self._eta)]
            for trial_id in best:
                higher = place + 1 < len(self.rungs) and trial_id in self._scores[place + 1]
                if trial_id in paused and not higher and scores[trial_id] > -float("inf"):
                    return paused[trial_id]
        return None
