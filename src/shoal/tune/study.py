"""The trials of any search as a study of Optuna, for its plots and measures."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shoal._core.domains import Choice, Domain, Float, Grid, Integer
from shoal._core.plain_data import flat, printable
from shoal._core.retention import lookup
from shoal._core.space import domains, named
from shoal._core.trials import TrialStatus

if TYPE_CHECKING:
    import optuna

LATER = frozenset({TrialStatus.PENDING, TrialStatus.RUNNING, TrialStatus.PAUSED})


@dataclass(frozen=True, kw_only=True)
class Tried:
    """A trial: its configuration, what it reported, and how it ended."""

    trial_id: str
    config: Mapping[str, Any]
    last: Mapping[str, Any]
    rows: Sequence[Mapping[str, Any]]
    status: str
    error: str = ""


def study_of(
    tried: Sequence[Tried], metrics: Sequence[str], modes: Sequence[str], space: Any, name: str
) -> optuna.Study:
    """Return a study in memory with these trials.

    Parameters
    ----------
    metrics, modes : sequence of str
        The objectives. A trial whose last report lacks one, or has no finite number there, counts as failed.
    space : optional
        The search space, from which the ranges of parameters are; where it says nothing, they are as wide as what was
        tried. Values that Optuna cannot have are told by their text.

    Raises
    ------
    ImportError
        If Optuna is not installed.
    """
    try:
        import optuna
    except ImportError as error:
        raise ImportError("Optuna is not installed: pip install 'shoal[optuna]'") from error
    better = optuna.study.StudyDirection
    directions = [better.MAXIMIZE if mode == "max" else better.MINIMIZE for mode in modes]
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        study = optuna.create_study(directions=directions, study_name=name)
    finally:
        optuna.logging.set_verbosity(verbosity)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        study.set_metric_names(list(metrics))
    distributions = dict(_distributions(tried, space))
    study.add_trials([_frozen(trial, metrics, distributions) for trial in tried])
    return study


def _frozen(tried: Tried, metrics: Sequence[str], distributions: Mapping[str, Any]) -> optuna.trial.FrozenTrial:
    from optuna.trial import TrialState, create_trial

    values = [_number(lookup(tried.last, metric)) for metric in metrics]
    whole = [value for value in values if value is not None]
    state = TrialState.COMPLETE if len(whole) == len(values) else TrialState.FAIL
    if tried.status == TrialStatus.ERROR:
        state = TrialState.FAIL
    elif tried.status in LATER:
        state = TrialState.RUNNING if tried.last else TrialState.WAITING
    own = {name: distributions[name] for name in flat(tried.config) if name in distributions}
    steps = {} if len(metrics) > 1 else dict(_steps(tried.rows, metrics[0]))
    return create_trial(
        state=state,
        values=whole if state is TrialState.COMPLETE else None,
        params={name: _in(own[name], value) for name, value in flat(tried.config).items() if name in own},
        distributions=own,
        intermediate_values=steps,
        user_attrs={"trial_id": tried.trial_id, "error": tried.error} if tried.error else {"trial_id": tried.trial_id},
    )


def _steps(rows: Sequence[Mapping[str, Any]], metric: str) -> Iterator[tuple[int, float]]:
    for row in rows:
        value = _number(lookup(row, metric))
        if value is not None:
            yield row["training_iteration"], value


def _distributions(tried: Sequence[Tried], space: Any) -> Iterator[tuple[str, Any]]:
    """Yield the parameters that can differ, each with its range: that of the space, widened to all that was tried."""
    known = {named(path): domain for path, domain in domains(space)} if space is not None else {}
    values: dict[str, list[Any]] = {}
    for trial in tried:
        for name, value in flat(trial.config).items():
            values.setdefault(name, []).append(value)
    for name, seen in values.items():
        domain = known.get(name)
        if domain is not None or len({repr(value) for value in seen}) > 1 or len(seen) < len(tried):
            yield name, _distribution(domain, seen)


def _distribution(domain: Domain | None, seen: Sequence[Any]) -> Any:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if isinstance(domain, (Choice, Grid)) or not all(_number(value) is not None for value in seen):
        offered = [*getattr(domain, "values", ()), *seen]
        return CategoricalDistribution(list(dict.fromkeys(_category(value) for value in offered)))
    low, high, log = min(seen), max(seen), False
    if isinstance(domain, (Float, Integer)):
        last = domain.upper if isinstance(domain, Float) or domain.q else domain.upper - 1
        low, high, log = min(low, domain.lower), max(high, last), domain.log
    log = log and low > 0
    if isinstance(domain, Float) or not all(isinstance(value, int) for value in seen):
        return FloatDistribution(float(low), float(high), log=log)
    return IntDistribution(int(low), int(high), log=log)


def _in(distribution: Any, value: Any) -> Any:
    if hasattr(distribution, "choices"):
        return _category(value)
    return float(value) if isinstance(distribution.low, float) else int(value)


def _category(value: Any) -> Any:
    if isinstance(value, float) and math.isnan(value):
        return "nan"
    return value if value is None or isinstance(value, bool | int | float | str) else str(printable(value))


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)
