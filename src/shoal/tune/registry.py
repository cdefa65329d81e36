"""Searchers, schedulers and trainables by name; and a search's settings as data, from which it is restored."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping
from typing import Any

from shoal import _plugins
from shoal._core import domains as kinds
from shoal._core.trials import Searcher, TrialScheduler
from shoal.train.config import CheckpointConfig, FailureConfig, RunConfig
from shoal.tune.config import TuneConfig

_DOMAINS = {kind.__name__: kind for kind in (kinds.Float, kinds.Integer, kinds.Normal, kinds.Choice, kinds.Grid)}
_trainables: dict[str, Any] = {}


# ---- by name --------------------------------------------------------------------------------------------------------


def create_searcher(search_alg: str, **kwargs: Any) -> Searcher:
    """Return the searcher of this name, made with these arguments.

    Examples
    --------
    >>> from shoal import tune
    >>> searcher = tune.create_searcher("random", random_state=1)
    """
    made: Searcher = _plugins.load("searcher", search_alg)(**kwargs)
    return made


def create_scheduler(scheduler: str, **kwargs: Any) -> TrialScheduler:
    """Return the scheduler of this name, made with these arguments.

    Examples
    --------
    >>> from shoal import tune
    >>> scheduler = tune.create_scheduler("asha", metric="loss", mode="min", max_t=50)
    """
    made: TrialScheduler = _plugins.load("scheduler", scheduler)(**kwargs)
    return made


def register_trainable(name: str, trainable: Any, warn: bool = True) -> None:
    """Give a trainable a name, under which ``Tuner(name)`` and ``tune.run(name)`` find it in this process."""
    if not callable(trainable):
        raise TypeError(f"trainable={trainable!r}: give a function or a subclass of tune.Trainable")
    _trainables[name] = trainable


def trainable(given: Any) -> Any:
    """Return a trainable, which may be given by its name."""
    if not isinstance(given, str):
        return given
    if given not in _trainables:
        known = ", ".join(sorted(_trainables)) or "none"
        raise ValueError(f"there is no trainable named {given!r}; registered with tune.register_trainable: {known}")
    return _trainables[given]


def searcher(given: Any) -> Searcher:
    """Return a searcher, which may be given by its name or not at all."""
    if given is None or isinstance(given, str):
        return create_searcher(given or "random")
    if not isinstance(given, Searcher):
        raise TypeError(f"search_alg={given!r} is a {type(given).__name__}; give a searcher of shoal.tune.search")
    return given


def scheduler(given: Any) -> TrialScheduler:
    """Return a scheduler, which may be given by its name or not at all."""
    if given is None or isinstance(given, str):
        return create_scheduler(given or "fifo")
    if not isinstance(given, TrialScheduler):
        raise TypeError(f"scheduler={given!r} is a {type(given).__name__}; give a scheduler of shoal.tune.schedulers")
    return given


# ---- as data --------------------------------------------------------------------------------------------------------


class NoData(Exception):
    """Something in a search's settings is an object of the user's own."""


def described(space: Any, config: TuneConfig, run: RunConfig) -> dict[str, Any]:
    """Return the settings of a search as data; ``None`` for what cannot be, which has to be given again."""
    plain = {
        field.name: getattr(config, field.name)
        for field in dataclasses.fields(config)
        if field.name not in {"trial_name_creator", "trial_dirname_creator", "chdir_to_trial_dir", "time_budget_s"}
    }
    plain["time_budget_s"] = config.budget
    creators = config.trial_name_creator or config.trial_dirname_creator
    return {
        "param_space": _or_none(space),
        "tune_config": None if creators else _or_none(plain),
        "run_config": {**run.describe(), "stop": _or_none(run.stop), "has_stop": run.stop is not None},
    }


def restored_space(kept: Mapping[str, Any]) -> dict[str, Any]:
    """Return the search space of a search that is gone on with."""
    if kept.get("param_space") is None:
        raise ValueError("the search space holds objects of your own, which a search does not keep: give param_space")
    return dict(_read(kept["param_space"]))


def restored_config(kept: Mapping[str, Any]) -> TuneConfig:
    """Return the ``TuneConfig`` of a search that is gone on with."""
    if kept.get("tune_config") is None:
        raise ValueError(
            "the searcher or the scheduler holds objects of your own, which a search does not keep: give tune_config"
        )
    return TuneConfig(**_read(kept["tune_config"]))


def restored_run_config(kept: Mapping[str, Any]) -> RunConfig:
    """Return the ``RunConfig`` of a search that is gone on with."""
    run = kept["run_config"]
    if run.get("has_stop") and run.get("stop") is None:
        raise ValueError(
            "stop was an object of your own, which a search does not keep: give run_config=RunConfig(stop=...)"
        )
    return RunConfig(
        failure_config=FailureConfig(**run["failure_config"]),
        checkpoint_config=CheckpointConfig(**run["checkpoint_config"]),
        stop=_read(run["stop"]) if run.get("stop") is not None else None,
    )


def _or_none(value: Any) -> Any:
    try:
        return _data(value)
    except NoData:
        return None


def _data(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if type(value).__name__ in _DOMAINS and type(value) is _DOMAINS[type(value).__name__]:
        fields = {field.name: _data(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {"$domain": type(value).__name__, **fields}
    if isinstance(value, (Searcher, TrialScheduler)) and type(value).__module__.startswith("shoal.tune."):
        arguments, named = value._made_with
        target = f"{type(value).__module__}:{type(value).__qualname__}"
        return {"$class": target, "arguments": _data(list(arguments)), "named": _data(dict(named))}
    if isinstance(value, tuple):
        return {"$tuple": [_data(inner) for inner in value]}
    if isinstance(value, list):
        return [_data(inner) for inner in value]
    if isinstance(value, Mapping) and all(isinstance(key, str) and not key.startswith("$") for key in value):
        return {key: _data(inner) for key, inner in value.items()}
    raise NoData


def _read(value: Any) -> Any:
    if isinstance(value, list):
        return [_read(inner) for inner in value]
    if not isinstance(value, dict):
        return value
    if "$tuple" in value:
        return tuple(_read(inner) for inner in value["$tuple"])
    if "$domain" in value:
        return _DOMAINS[value["$domain"]](**{key: _read(inner) for key, inner in value.items() if key != "$domain"})
    if "$class" in value:
        return _made(value)
    return {key: _read(inner) for key, inner in value.items()}


def _made(value: dict[str, Any]) -> Any:
    module, _, name = value["$class"].partition(":")
    if not module.startswith("shoal.tune."):
        raise ValueError(f"{value['$class']!r} is no class of shoal: nothing of it is imported")
    kind = getattr(importlib.import_module(module), name)
    if not (isinstance(kind, type) and issubclass(kind, (Searcher, TrialScheduler))):
        raise ValueError(f"{value['$class']!r} is neither a searcher nor a scheduler")
    return kind(*_read(value["arguments"]), **_read(value["named"]))
