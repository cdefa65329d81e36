"""A search space: a configuration with domains in it, at any depth, of which configurations are made.

Everything drawn for one trial comes from one generator that is seeded with the search's seed and the trial's number, so
the configuration of a trial depends on nothing that happened before it.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random
from typing import Any

from shoal._core.domains import Computed, Domain, Grid

Path = tuple[str | int, ...]
DEPTH = 20  # of domains whose values have domains in them


def as_space(value: Any) -> Any:
    """Return a configuration in which every ``{"grid_search": [...]}`` is a :class:`Grid`; the rest is as it was."""
    if isinstance(value, Mapping):
        if set(value) == {"grid_search"}:
            return Grid(tuple(value["grid_search"]))
        return {key: as_space(inner) for key, inner in value.items()}
    if type(value) in {list, tuple}:
        return type(value)(as_space(inner) for inner in value)
    return value


def domains(value: Any, path: Path = ()) -> Iterator[tuple[Path, Domain]]:
    """Yield every domain in a configuration with the path that leads to it."""
    if isinstance(value, Domain):
        yield path, value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from domains(inner, (*path, key))
    elif type(value) in {list, tuple}:
        for number, inner in enumerate(value):
            yield from domains(inner, (*path, number))


def named(path: Path) -> str:
    """Return a path as people write it: ``model/layers/0``."""
    return "/".join(str(part) for part in path)


def check(space: Any) -> None:
    """Raise ``ValueError`` that names the key where a domain can have no value."""
    for path, domain in domains(space):
        wrong = domain.check()
        if wrong:
            raise ValueError(f"param_space[{named(path)!r}]: {type(domain).__name__} is not possible: {wrong}")
        for option in getattr(domain, "values", ()):
            option_space = as_space(option)
            nested = [inner for inner, found in domains(option_space) if isinstance(found, Grid)]
            if nested:
                raise ValueError(
                    f"param_space[{named(path)!r}]: a grid inside of a choice or of another grid cannot be gone "
                    "through; use tune.choice in it, or make the choice a grid of whole configurations"
                )
            check(option_space) if not isinstance(option_space, Domain) else check({named(path): option_space})


def grids(space: Any) -> list[dict[Path, Any]]:
    """Return, for every point of all grids together, the value of each; one empty point if there is no grid."""
    found = [(path, domain.values) for path, domain in domains(space) if isinstance(domain, Grid)]
    points = itertools.product(*(values for _, values in found))
    return [dict(zip((path for path, _ in found), point, strict=True)) for point in points]


class Unresolved(Exception):
    """A function asked for a parameter that is not resolved yet."""

    def __init__(self, key: object):
        super().__init__(str(key))
        self.key = key


class Resolved(dict[str, Any]):
    """The part of a configuration that is resolved: a dict, whose keys are attributes, too.

    ``spec.config.lr`` and ``spec["lr"]`` are the same, so that functions of either habit work.
    """

    def __getattr__(self, name: str) -> Any:
        if name == "config" and name not in self:
            return self
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def get(self, key: str, default: Any = None) -> Any:
        try:
            return self[key]
        except KeyError:
            return default

    def __getitem__(self, key: str) -> Any:
        value = super().__getitem__(key)
        if isinstance(value, Domain):
            raise Unresolved(key)
        return Resolved(value) if type(value) is dict else value


def resolve(space: Any, rng: Random, fixed: Mapping[Path, Any] | None = None) -> Any:
    """Return a configuration: every domain replaced by a value, those in drawn values too.

    Parameters
    ----------
    space : configuration
        With domains in it; it is not changed.
    rng : Random
        What all values are drawn with.
    fixed : mapping of path to value, optional
        Values that are given for some paths, such as those of grids.

    Raises
    ------
    ValueError
        If functions wait for each other, or a domain's values have ever more domains in them.
    """
    given = {path: as_space(value) for path, value in (fixed or {}).items()}
    config = _replaced(space, given)
    for _ in range(DEPTH):
        waiting = list(domains(config))
        if not waiting:
            return config
        plain = {path: as_space(d.draw(rng)) for path, d in waiting if not isinstance(d, Computed)}
        config = _replaced(config, plain)
        if not plain:
            config = _computed(config, waiting)
    raise ValueError(f"param_space: {named(next(domains(config))[0])!r} gives domains within domains without an end")


def _computed(config: Any, waiting: Sequence[tuple[Path, Domain]]) -> Any:
    """Replace the functions that can be called now; those that need another one's value come later."""
    values: dict[Path, Any] = {}
    asked: dict[str, object] = {}
    for path, domain in waiting:
        if not isinstance(domain, Computed):
            raise AssertionError("only functions are left here")
        try:
            values[path] = as_space(_call(domain.function, config))
        except Unresolved as error:
            asked[named(path)] = error.key
        except Exception as error:
            error.add_note(f"raised by the function at param_space[{named(path)!r}]")
            raise
    if not values:
        pairs = ", ".join(f"{name!r} needs {key!r}" for name, key in asked.items())
        raise ValueError(f"param_space: functions wait for each other: {pairs}")
    return _replaced(config, values)


def _call(function: Callable[..., Any], config: Any) -> Any:
    try:
        takes = bool(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        takes = True
    return function(Resolved(config)) if takes else function()


def _replaced(value: Any, values: Mapping[Path, Any], path: Path = ()) -> Any:
    """Return a configuration with the values at these paths in place of what is there."""
    if path in values:
        return values[path]
    if isinstance(value, Mapping):
        return {key: _replaced(inner, values, (*path, key)) for key, inner in value.items()}
    if type(value) in {list, tuple}:
        return type(value)(_replaced(inner, values, (*path, number)) for number, inner in enumerate(value))
    return value
