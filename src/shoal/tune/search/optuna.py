"""Optuna: any of its samplers, several objectives, and spaces that depend on what was chosen."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

from shoal._core.domains import Choice, Computed, Domain, Float, Grid, Integer
from shoal._core.plain_data import printable
from shoal._core.retention import lookup, score
from shoal._core.space import Path, as_space, domains, named, resolve
from shoal._core.trials import check_mode
from shoal.tune.search.library import Axis, LibrarySearcher, Parameter, axis

Names = str | Sequence[str]


class OptunaSearch(LibrarySearcher):
    """Suggests by a sampler of the library Optuna.

    Akiba et al., *Optuna: A Next-generation Hyperparameter Optimization Framework*, KDD 2019. A choice may have domains
    in it: these are suggested only when it is taken.

    Parameters
    ----------
    space : mapping or callable, optional
        The search space, where the experiment has none: domains, Optuna's distributions, or a function that gets an
        ``optuna.Trial``, calls its ``suggest_…`` methods, and returns further constant parameters or nothing.
    metric, mode : str or sequence of str, optional
        The experiment's by default; several of each for several objectives.
    points_to_evaluate : sequence of mappings, optional
        Configurations, or parts of them, to begin with.
    sampler : optuna.samplers.BaseSampler, optional
        ``TPESampler`` by default.
    study_name : str, optional
        The name of the study.
    storage : optuna.storages.BaseStorage, optional
        Where the study is kept; in memory by default.
    seed : int, optional
        Of the default sampler; the experiment's by default.
    evaluated_rewards : sequence of float, optional
        What is known of ``points_to_evaluate``: they are not run then.

    Attributes
    ----------
    study : optuna.Study
        What Optuna's own plots take.
    """

    library = "optuna"
    package = "optuna"

    def __init__(
        self,
        space: Mapping[str, Any] | Callable[[Any], Any] | None = None,
        metric: Names | None = None,
        mode: Names | None = None,
        points_to_evaluate: Sequence[Mapping[str, Any]] | None = None,
        sampler: Any = None,
        study_name: str | None = None,
        storage: Any = None,
        seed: int | None = None,
        evaluated_rewards: Sequence[float] | None = None,
    ):
        metrics = [metric] if isinstance(metric, str) else list(metric or ())
        modes = [mode] if isinstance(mode, str) else list(mode or ())
        for each in modes:
            check_mode(each)
        if len(metrics) > 1 and len(modes) != len(metrics):
            raise ValueError(f"metric={metric!r}, mode={mode!r}: give as many modes as metrics")
        super().__init__(
            space, metrics[0] if metrics else None, modes[0] if modes else None, points_to_evaluate, evaluated_rewards
        )
        self._metrics, self._modes = metrics, modes
        self._sampler, self._name, self._storage, self._own_seed = sampler, study_name, storage, seed
        self._trials: dict[str, Any] = {}
        self.study: Any = None

    def set_search_properties(self, metric: str | None, mode: str | None, config: dict[str, Any], **spec: Any) -> bool:
        if not self._metrics and metric:
            self._metrics = [metric]
        if not self._modes and mode:
            self._modes = [mode]
        return super().set_search_properties(metric, mode, config, **spec)

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        trial = self._trials.get(trial_id)
        if trial is not None and len(self._metrics) == 1:
            value = lookup(result, self._metrics[0])
            if isinstance(value, (int, float)):
                trial.report(float(value), int(result["training_iteration"]))

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        trial = self._trials.pop(trial_id, None)
        if trial is None:
            return
        values = [lookup(result or {}, metric) for metric in self._metrics]
        scores = [score(result or {}, metric, "max") for metric in self._metrics]
        if error or min(scores, default=-float("inf")) == -float("inf"):
            self.study.tell(trial, state=self._module.trial.TrialState.FAIL)
        else:
            self.study.tell(trial, [float(value) for value in values])

    # ---- what a searcher over a library does ------------------------------------------------------------------------

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        if not self._ready:
            raise ValueError("OptunaSearch has no search space yet: it is given by a Tuner")
        if self._points:
            self._enqueue(self._completed(self._points.pop(0)))
        return self._asked(trial_id)

    def suggested_before(self, trial_id: str, config: dict[str, Any]) -> dict[str, Any]:
        if self._points:
            self._points.pop(0)
        self._enqueue(config)
        return self._asked(trial_id)

    def _domains_of(self, space: Any) -> dict[str, Any]:
        if space is None or callable(space):
            return {}
        if not isinstance(space, Mapping):
            raise TypeError(f"space={space!r}: give domains of shoal.tune, Optuna's distributions, or a function")
        return {name: _Distribution(value) if hasattr(value, "_asdict") else value for name, value in space.items()}

    def _open(self, space: dict[str, Any]) -> None:
        for path, domain in domains(space):
            if isinstance(domain, Grid):
                name = named(path)
                raise ValueError(
                    f"param_space[{name!r}] is a grid, which OptunaSearch cannot go through: use tune.choice(...)"
                )
            if not isinstance(domain, (Float, Integer, Choice, Computed, _Distribution)):
                raise ValueError(
                    f"param_space[{named(path)!r}] has no bounds, which OptunaSearch needs: use tune.uniform(...)"
                )
        if not callable(self._own_space) and next(domains(space), None) is None:
            raise ValueError("OptunaSearch has nothing to search: param_space has no domains in it")
        self._begin({}, self._seed)

    def _begin(self, parameters: Mapping[str, Parameter], seed: int) -> None:
        optuna = self._module
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        sampler = self._sampler or optuna.samplers.TPESampler(seed=seed if self._own_seed is None else self._own_seed)
        directions = ["maximize" if mode == "max" else "minimize" for mode in self._modes]
        self.study = optuna.create_study(
            storage=self._storage,
            sampler=sampler,
            study_name=self._name,
            directions=directions,
            load_if_exists=self._storage is not None,
        )

    def _ask(self, trial_id: str) -> dict[str, Any]:
        raise AssertionError("Optuna suggests a parameter at a time")

    def _tell(self, trial_id: str, values: dict[str, Any], value: float | None) -> None:
        raise AssertionError("Optuna is told in on_trial_complete")

    def _encoded(self, config: Mapping[str, Any]) -> dict[str, Any]:
        return _chosen(self._space, config)

    def _learn(self, values: dict[str, Any], value: float) -> None:
        self.study.enqueue_trial(values)
        trial = self.study.ask()
        self._config(trial)
        self.study.tell(trial, value if self._mode == "max" else -value)

    # ---- inside -----------------------------------------------------------------------------------------------------

    def _enqueue(self, config: Mapping[str, Any]) -> None:
        if callable(self._own_space):
            self.study.enqueue_trial(dict(config))
        else:
            self.study.enqueue_trial(_chosen(self._space, config))

    def _asked(self, trial_id: str) -> dict[str, Any]:
        trial = self._trials[trial_id] = self.study.ask()
        return self._config(trial, trial_id)

    def _config(self, trial: Any, trial_id: str = "") -> dict[str, Any]:
        """Have every parameter suggested, and return the configuration."""
        if callable(self._own_space):
            constants = self._own_space(trial) or {}
            return {**self._space, **constants, **trial.params}
        suggested = _suggested(self._space, trial, ())
        config: dict[str, Any] = resolve(suggested, Random(f"{self._seed}//{trial_id}"))
        return config


class _Distribution(Domain):
    """A distribution in Optuna's own terms."""

    def __init__(self, distribution: Any):
        self.distribution = distribution

    def draw(self, rng: Random) -> Any:
        raise AssertionError("Optuna draws from its own distributions")

    def check(self) -> str:
        return ""


def _suggested(value: Any, trial: Any, path: Path) -> Any:
    """Return a space with a value for every domain, also for those within what was chosen; functions are left."""
    if isinstance(value, Computed):
        return value
    if isinstance(value, _Distribution):
        return trial._suggest(named(path), value.distribution)
    if isinstance(value, Choice):
        place = trial.suggest_categorical(named(path), list(range(len(value.values))))
        return _suggested(as_space(value.values[place]), trial, (*path, f"[{place}]"))
    if isinstance(value, (Float, Integer)):
        return _suggest_number(axis(value), trial, named(path))
    if isinstance(value, Mapping):
        return {key: _suggested(inner, trial, (*path, key)) for key, inner in value.items()}
    if type(value) in {list, tuple}:
        return type(value)(_suggested(inner, trial, (*path, number)) for number, inner in enumerate(value))
    return value


def _suggest_number(parameter: Axis, trial: Any, name: str) -> Any:
    suggest = trial.suggest_int if parameter.integer else trial.suggest_float
    return parameter.decode(suggest(name, parameter.low, parameter.high, log=parameter.log))


def _chosen(value: Any, config: Any, path: Path = ()) -> dict[str, Any]:
    """Return what Optuna would have suggested for a configuration, by the names of its parameters."""
    if isinstance(value, Choice):
        for place, option in enumerate(value.values):
            if _matches(as_space(option), config):
                inner = _chosen(as_space(option), config, (*path, f"[{place}]"))
                return {named(path): place, **inner}
        return {}
    if isinstance(value, (Float, Integer)):
        return {named(path): axis(value).encode(config)}
    if isinstance(value, _Distribution):
        return {named(path): config}
    found: dict[str, Any] = {}
    if isinstance(value, Mapping) and isinstance(config, Mapping):
        for key, inner in value.items():
            found.update(_chosen(inner, config.get(key), (*path, key)))
    elif type(value) in {list, tuple} and isinstance(config, (list, tuple)):
        for number, (inner, part) in enumerate(zip(value, config, strict=False)):
            found.update(_chosen(inner, part, (*path, number)))
    return found


def _matches(space: Any, config: Any) -> bool:
    """Whether a configuration may come from a space."""
    if isinstance(space, Choice):
        return any(_matches(as_space(option), config) for option in space.values)
    if isinstance(space, (Float, Integer)):
        number = isinstance(config, (int, float)) and not isinstance(config, bool)
        return number and space.lower <= config <= space.upper
    if isinstance(space, Domain):
        return True
    if isinstance(space, Mapping):
        return (
            isinstance(config, Mapping)
            and space.keys() == config.keys()
            and all(_matches(inner, config[key]) for key, inner in space.items())
        )
    if type(space) in {list, tuple}:
        same = isinstance(config, (list, tuple)) and len(space) == len(config)
        return same and all(map(_matches, space, config))
    return space is config or printable(space) == printable(config)
