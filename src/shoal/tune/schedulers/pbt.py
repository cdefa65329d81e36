"""Population based training: the worse trials go on from checkpoints of the better ones, with changed parameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from shoal._core.domains import Domain, Float, Integer
from shoal._core.space import as_space
from shoal._core.trials import Trial, Trials, TrialScheduler

Mutations = Mapping[str, Any]


@dataclass
class _Member:
    """A trial in the population."""

    score: float = -math.inf
    perturbed_at: float = 0.0
    time: float = 0.0
    waits: bool = False


@dataclass(frozen=True)
class Exploit:
    """One step of the lineage: at ``time``, a trial went on as another one, with this configuration."""

    trial_id: str
    source_id: str
    time: float
    old_config: dict[str, Any]
    new_config: dict[str, Any] = field(default_factory=dict)


class PopulationBasedTraining(TrialScheduler):
    """Every interval, a trial of the worse quantile goes on from the checkpoint of one of the better, changed.

    Jaderberg et al., *Population Based Training of Neural Networks*, 2017. A trial in the lowest quantile takes over
    weights and configuration of a random one of the highest; then each parameter is drawn anew with a probability, or
    else multiplied by one of the factors (a number), or moved to a neighbour (a value of a list). Numbers stay within
    the bounds of their domain. ``training_iteration`` goes on.

    Parameters
    ----------
    time_attr : str
        What the interval is measured in: a key of the reports that only grows.
    metric : str, optional
        The metric to decide by; the experiment's by default.
    mode : str, optional
        ``"max"`` or ``"min"``.
    perturbation_interval : float
        How long a trial runs between two decisions about it.
    burn_in_period : float
        Before this time nothing is decided.
    hyperparam_mutations : mapping
        For each parameter that changes a domain, a list of values, or a function that returns a value. Nested mappings
        are for nested parameters.
    quantile_fraction : float
        The share of the population that is bad, and of that which is good; more than 0 and at most 0.5.
    resample_probability : float
        How likely a parameter is drawn anew.
    perturbation_factors : (float, float)
        What a number is multiplied with.
    custom_explore_fn : callable, optional
        Takes the changed configuration and returns the one to use.
    synch : bool
        Whether all trials wait for each other at each interval, so that the quantiles are of the same time.
    seed : int
        Of all random decisions.
    log_config, require_attrs : bool
        Accepted so that scripts move over: the lineage is always logged, and every report needs metric and time.

    Examples
    --------
    >>> from shoal import tune
    >>> from shoal.tune.schedulers import PopulationBasedTraining
    >>> scheduler = PopulationBasedTraining(
    ...     metric="accuracy", mode="max", time_attr="training_iteration", perturbation_interval=5,
    ...     hyperparam_mutations={"lr": tune.loguniform(1e-4, 1e-1), "batch_size": [16, 32, 64]},
    ... )
    """

    needs_metric = True
    ahead = True

    def __init__(
        self,
        time_attr: str = "time_total_s",
        metric: str | None = None,
        mode: str | None = None,
        perturbation_interval: float = 60.0,
        burn_in_period: float = 0.0,
        hyperparam_mutations: Mutations | None = None,
        quantile_fraction: float = 0.25,
        resample_probability: float = 0.25,
        perturbation_factors: tuple[float, float] = (1.2, 0.8),
        custom_explore_fn: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
        log_config: bool = True,
        require_attrs: bool = True,
        synch: bool = False,
        seed: int = 0,
    ):
        super().__init__(metric, mode)
        if not perturbation_interval > 0:
            raise ValueError(f"perturbation_interval={perturbation_interval!r}: give more than 0")
        if not 0 < quantile_fraction <= 0.5:
            raise ValueError(f"quantile_fraction={quantile_fraction!r}: give more than 0 and at most 0.5")
        if not 0 <= resample_probability <= 1:
            raise ValueError(f"resample_probability={resample_probability!r}: give 0 to 1")
        if not hyperparam_mutations and custom_explore_fn is None:
            raise ValueError("give hyperparam_mutations, custom_explore_fn, or both: else every copy is the same")
        self._time_attr = time_attr
        self._interval = perturbation_interval
        self._burn_in = burn_in_period
        self._mutations = {key: _domain(key, value) for key, value in (hyperparam_mutations or {}).items()}
        self._fraction = quantile_fraction
        self._resample = resample_probability
        self._factors = perturbation_factors
        self._explore_fn = custom_explore_fn
        self._synch = synch
        self._rng = Random(seed)
        self._members: dict[str, _Member] = {}
        self.lineage: list[Exploit] = []

    def on_trial_add(self, tune_controller: Trials, trial: Trial) -> None:
        self._members[trial.trial_id] = _Member()

    def on_trial_result(self, tune_controller: Trials, trial: Trial, result: dict[str, Any]) -> str:
        member = self._members.setdefault(trial.trial_id, _Member())
        member.time = float(result[self._time_attr])
        due = max(self._burn_in, member.perturbed_at + self._interval)
        if member.time < due:
            return self.CONTINUE
        self._scored(trial, member, self.score(result))
        member.perturbed_at = member.time
        if self._synch:
            return self._meet(tune_controller, trial, member)
        source = self._better_one(trial, *self.quantiles(tune_controller))
        if source is None:  # where the population is larger than the machine, the others are to come as far
            return self.PAUSE if trial.has_checkpoint and tune_controller.get_waiting_trials() else self.CONTINUE
        self._exploit(tune_controller, trial, source)
        return self.NOOP

    def on_trial_complete(self, tune_controller: Trials, trial: Trial, result: dict[str, Any]) -> None:
        self._leave(tune_controller, trial)

    def on_trial_error(self, tune_controller: Trials, trial: Trial) -> None:
        self._leave(tune_controller, trial)

    def on_trial_remove(self, tune_controller: Trials, trial: Trial) -> None:
        self._leave(tune_controller, trial)

    def choose_trial_to_run(self, tune_controller: Trials) -> Trial | None:
        waiting = tune_controller.get_waiting_trials()
        free = [t for t in waiting if not self._members.get(t.trial_id, _Member()).waits]
        # The one that is furthest behind: a population larger than the machine advances together.
        return min(free, key=lambda t: self._members.get(t.trial_id, _Member()).time, default=None)

    # ---- inside -----------------------------------------------------------------------------------------------------

    def _meet(self, controller: Trials, trial: Trial, member: _Member) -> str:
        """Wait until every living trial is there; the last one decides for all."""
        member.waits = True
        living = controller.get_live_trials()
        if not all(self._members[t.trial_id].waits for t in living):
            return self.PAUSE
        self._decide_for_all(controller, living)
        return self.PAUSE

    def _decide_for_all(self, controller: Trials, living: Sequence[Trial]) -> None:
        quantiles = self.quantiles(controller)  # of one moment, for all
        for other in living:
            source = self._better_one(other, *quantiles)
            if source is not None:
                self._exploit(controller, other, source)
        for other in living:
            self._members[other.trial_id].waits = False

    def _leave(self, controller: Trials, trial: Trial) -> None:
        """A trial has ended: those that wait for it need not any longer."""
        self._members.pop(trial.trial_id, None)
        living = [t for t in controller.get_live_trials() if t.trial_id in self._members]
        if self._synch and living and all(self._members[t.trial_id].waits for t in living):
            self._decide_for_all(controller, living)

    def quantiles(self, controller: Trials) -> tuple[list[Trial], list[Trial]]:
        """Return the worse and the better trials, of those that have a score."""
        scored = [t for t in controller.get_live_trials() if self._members.get(t.trial_id, _Member()).score > -math.inf]
        if len(scored) < 2:
            return [], []
        scored.sort(key=lambda t: self._members[t.trial_id].score)
        count = min(math.ceil(len(scored) * self._fraction), len(scored) // 2)
        return scored[:count], scored[-count:]

    def _better_one(self, trial: Trial, lower: Sequence[Trial], upper: Sequence[Trial]) -> Trial | None:
        """Return which trial this one is to go on from; ``None`` if it goes on as it is."""
        nothing = self._members[trial.trial_id].score == -math.inf  # a trial without a number is among the worse
        upper = [t for t in upper if t.has_checkpoint]
        if upper and (trial in lower or (nothing and trial not in upper)):
            return upper[self._rng.randrange(len(upper))]
        return None

    def _exploit(self, controller: Trials, trial: Trial, source: Trial) -> None:
        config = self._successor(trial, source)
        time = self._members[trial.trial_id].time
        self.lineage.append(Exploit(trial.trial_id, source.trial_id, time, dict(trial.config), config))
        self._members[trial.trial_id].score = self._members[source.trial_id].score
        controller.clone(trial, source, config)

    def _scored(self, trial: Trial, member: _Member, score: float) -> None:
        """A trial has come to the end of an interval."""
        member.score = score

    def _successor(self, trial: Trial, source: Trial) -> dict[str, Any]:
        """Return the configuration with which a trial goes on as another one."""
        return self.explore(source.config)

    def explore(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return a changed copy of a configuration."""
        changed = self._changed(config, self._mutations)
        return self._explore_fn(changed) if self._explore_fn is not None else changed

    def _changed(self, config: Mapping[str, Any], mutations: Mapping[str, Any]) -> dict[str, Any]:
        changed = dict(config)
        for key, mutation in mutations.items():
            if isinstance(mutation, dict):
                changed[key] = self._changed(config.get(key, {}), mutation)
            elif key not in config or self._rng.random() < self._resample:
                changed[key] = self._drawn(mutation)
            else:
                changed[key] = self._perturbed(config[key], mutation)
        return changed

    def _drawn(self, mutation: Any) -> Any:
        if isinstance(mutation, Domain):
            return mutation.draw(self._rng)
        return mutation() if callable(mutation) else mutation[self._rng.randrange(len(mutation))]

    def _perturbed(self, value: Any, mutation: Any) -> Any:
        values = mutation if isinstance(mutation, list) else list(getattr(mutation, "values", ()))
        if values:
            if value not in values:
                return self._drawn(mutation)
            place = values.index(value) + self._rng.choice((-1, 1))
            return values[min(max(place, 0), len(values) - 1)]
        factor = self._rng.choice(self._factors)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return self._drawn(mutation)
        moved = type(value)(value * factor) if isinstance(value, float) else round(value * factor)
        return _within(moved, mutation)


def _within(value: float, mutation: Any) -> Any:
    """Return the nearest value within the bounds of a domain."""
    if isinstance(mutation, Integer):
        last = mutation.upper if mutation.q else mutation.upper - 1
        return min(max(int(value), mutation.lower), last)
    if isinstance(mutation, Float):
        return min(max(value, mutation.lower), mutation.upper)
    return value


def _domain(key: str, value: Any) -> Any:
    """Return what a parameter may become, in the form in which it is used here."""
    value = as_space(value)
    if isinstance(value, Mapping):
        return {inner: _domain(f"{key}/{inner}", deeper) for inner, deeper in value.items()}
    if isinstance(value, Domain) or callable(value):
        return value
    if isinstance(value, (list, tuple)) and value:
        return list(value)
    raise ValueError(
        f"hyperparam_mutations[{key!r}]={value!r}: give a domain such as tune.uniform(0, 1), a list of values, a "
        "function without arguments, or a mapping of these"
    )
