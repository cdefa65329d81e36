"""How much each parameter of a search matters for its metric, from what was written down of its trials."""

from __future__ import annotations

from typing import Any

from shoal._core.errors import ShoalError
from shoal._core.overview import Overview
from shoal._core.trials import TrialStatus
from shoal.tune import registry
from shoal.tune.plots import evaluator
from shoal.tune.study import Tried, study_of

ENOUGH = 4  # trials


def importance(search: Overview) -> dict[str, float]:
    """Return the share of each parameter in the variance of the metric; the shares add up to one.

    The measure is that of :meth:`shoal.tune.ResultGrid.plot`: see :func:`shoal.tune.plots.evaluator`.

    Raises
    ------
    ShoalError
        If Optuna is missing, or too few trials have the metric.
    """
    try:
        import optuna
    except ImportError as error:
        raise ShoalError('the importance of parameters needs: pip install "shoal[tune]"') from error
    if search.metric is None:
        raise ShoalError("the search has no metric")
    try:
        space: Any = registry.restored_space(search.asked)
    except ValueError:
        space = {}
    tried = [
        Tried(
            trial_id=trial.trial_id,
            config=trial.config,
            last=trial.metrics,
            rows=[],
            status=TrialStatus(trial.status),
            error=trial.error,
        )
        for trial in search.trials
    ]
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = study_of(tried, [search.metric], [search.mode or "min"], space, search.name)
    complete = [trial for trial in study.trials if trial.state == optuna.trial.TrialState.COMPLETE]
    if len(complete) < ENOUGH:
        raise ShoalError(f"the importance of parameters needs {ENOUGH} trials that have ended; {len(complete)} have")
    try:
        found = optuna.importance.get_param_importances(study, evaluator=evaluator())
    except (ValueError, RuntimeError) as error:
        raise ShoalError(f"the importance of parameters cannot be told: {error}") from error
    return {name: float(value) for name, value in found.items()}
