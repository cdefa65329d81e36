"""Population based bandits: as population based training, with parameters that a model of the population suggests."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from shoal._core.retention import lookup
from shoal._core.trials import Trial
from shoal.tune.schedulers.pbt import PopulationBasedTraining, _Member

FEWEST = 3  # observations from which a model is made; before, parameters are drawn
_NEEDED = "PB2 needs scikit-learn: pip install 'shoal[pb2]'"


@dataclass(frozen=True)
class _Tried:
    """Parameters (from 0 to 1) at a time, for a trial that had this score."""

    time: float
    score: float
    parameters: tuple[float, ...]


class PB2(PopulationBasedTraining):
    """The worse trials go on as the better ones, with parameters that promise the most by what the population has seen.

    Parker-Holder, Nguyen, Roberts, *Provably Efficient Online Hyperparameter Optimization with Population-Based
    Bandits*, 2020. How much the metric gets better in an interval is modelled by a Gaussian process of time, of the
    score before, and of the parameters, in which older observations count less; the parameters with the highest upper
    confidence bound are taken, those that other trials are trying counted as known. Works with populations of four
    trials on, where population based training needs dozens.

    Parameters
    ----------
    time_attr, metric, mode, perturbation_interval, quantile_fraction, custom_explore_fn, synch, seed
        As for :class:`PopulationBasedTraining`.
    hyperparam_bounds : mapping
        For each parameter that changes ``[lower, upper]``. Parameters whose bounds are both whole numbers stay whole.
        Nested parameters have their path as key, as in ``"optimizer/lr"``.
    log_config, require_attrs : bool
        Accepted so that scripts move over: the lineage is always logged, and every report needs metric and time.

    Examples
    --------
    >>> from shoal.tune.schedulers import PB2
    >>> scheduler = PB2(
    ...     metric="accuracy", mode="max", time_attr="training_iteration", perturbation_interval=5,
    ...     hyperparam_bounds={"lr": [1e-4, 1e-1], "batch_size": [16, 64]},
    ... )
    """

    def __init__(
        self,
        time_attr: str = "time_total_s",
        metric: str | None = None,
        mode: str | None = None,
        perturbation_interval: float = 60.0,
        hyperparam_bounds: Mapping[str, Any] | None = None,
        quantile_fraction: float = 0.25,
        log_config: bool = True,
        require_attrs: bool = True,
        synch: bool = False,
        custom_explore_fn: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
        seed: int = 0,
    ):
        try:
            import sklearn.gaussian_process  # noqa: F401
        except ImportError as error:
            raise ImportError(_NEEDED) from error
        self._bounds = _checked(hyperparam_bounds or {})
        super().__init__(
            time_attr,
            metric,
            mode,
            perturbation_interval,
            quantile_fraction=quantile_fraction,
            custom_explore_fn=custom_explore_fn or dict,
            synch=synch,
            seed=seed,
        )
        self._observed: list[tuple[_Tried, float]] = []
        self._trying: dict[str, _Tried] = {}

    def _scored(self, trial: Trial, member: _Member, score: float) -> None:
        """Learn by how much the metric got better since the last interval."""
        if math.isfinite(score) and math.isfinite(member.score):
            before = self._trying.get(trial.trial_id)
            time = before.time if before else member.time - self._interval
            tried = _Tried(time, member.score, self._parameters(trial.config))
            self._observed.append((tried, score - member.score))
        super()._scored(trial, member, score)
        self._trying[trial.trial_id] = _Tried(member.time, score, self._parameters(trial.config))

    def _leave(self, controller: Any, trial: Trial) -> None:
        self._trying.pop(trial.trial_id, None)
        super()._leave(controller, trial)

    def _successor(self, trial: Trial, source: Trial) -> dict[str, Any]:
        time, score = self._members[trial.trial_id].time, self._members[source.trial_id].score
        others = [tried for name, tried in self._trying.items() if name != trial.trial_id]
        if len(self._observed) < FEWEST:
            chosen = tuple(self._rng.random() for _ in self._bounds)
        else:
            chosen = self._promising(time, score, others)
        config = dict(source.config)
        for (path, (lower, upper)), place in zip(self._bounds.items(), chosen, strict=True):
            value = lower + place * (upper - lower)
            whole = isinstance(lower, int) and isinstance(upper, int)
            config = _with(config, path.split("/"), round(value) if whole else value)
        config = self.explore(config)
        self._trying[trial.trial_id] = _Tried(time, score, self._parameters(config))
        return config

    def _promising(self, time: float, score: float, others: list[_Tried]) -> tuple[float, ...]:
        import numpy as np

        from shoal.tune.schedulers.time_varying_gp import most_promising

        scores = [tried.score for tried, _ in self._observed] + [score]
        low, spread = min(scores), (max(scores) - min(scores)) or 1.0

        def row(tried: _Tried) -> list[float]:
            placed = (tried.score - low) / spread if math.isfinite(tried.score) else 0.0
            return [tried.time / self._interval, placed, *tried.parameters]

        chosen = most_promising(
            observed=np.array([row(tried) for tried, _ in self._observed]),
            changes=np.array([change for _, change in self._observed]),
            pending=np.array([row(tried) for tried in others]).reshape(len(others), 2 + len(self._bounds)),
            context=np.array([time / self._interval, (score - low) / spread]),
            seed=self._rng.randrange(2**31),
        )
        return tuple(float(value) for value in chosen)

    def _parameters(self, config: Mapping[str, Any]) -> tuple[float, ...]:
        places = []
        for path, (lower, upper) in self._bounds.items():
            value = lookup(config, path)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ValueError(
                    f"hyperparam_bounds has {path!r}, but the configuration has {value!r} there: give it a number in "
                    f"param_space, such as tune.uniform({lower!r}, {upper!r})"
                )
            places.append(min(max((value - lower) / (upper - lower), 0.0), 1.0))
        return tuple(places)


def _checked(bounds: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    if not bounds:
        raise ValueError("hyperparam_bounds is empty: give [lower, upper] for each parameter that is to change")
    checked = {}
    for path, given in bounds.items():
        pair = tuple(given) if isinstance(given, list | tuple) else ()
        numbers = [v for v in pair if isinstance(v, int | float) and not isinstance(v, bool) and math.isfinite(v)]
        if len(pair) != 2 or len(numbers) != 2 or not pair[0] < pair[1]:
            raise ValueError(f"hyperparam_bounds[{path!r}]={given!r}: give [lower, upper], two numbers in this order")
        checked[path] = (pair[0], pair[1])
    return checked


def _with(config: dict[str, Any], path: list[str], value: Any) -> dict[str, Any]:
    """Return the configuration with another value at a path."""
    key, *rest = path
    return {**config, key: _with(config[key], rest, value) if rest else value}
