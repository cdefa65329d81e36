"""What searchers over a library's ask-and-tell have in common: the space in its terms, and points given beforehand."""

from __future__ import annotations

import importlib
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from shoal._core.domains import Choice, Computed, Domain, Float, Grid, Integer, Normal, multiple, multiples
from shoal._core.plain_data import printable
from shoal._core.retention import score
from shoal._core.space import Path, as_space, check, domains, named, resolve
from shoal._core.trials import Searcher
from shoal.tune.search.basic_variant import with_point


@dataclass(frozen=True)
class Axis:
    """A number between two bounds, both included; where there is a step, how many steps from zero."""

    low: float
    high: float
    log: bool
    integer: bool
    step: float | None = None

    @property
    def single(self) -> bool:
        """Whether there is one value only, so that there is nothing to choose."""
        return self.low == self.high

    def decode(self, value: Any) -> Any:
        """Return the parameter's value for what the library has chosen."""
        if self.step is not None:
            return round(value) * self.step if isinstance(self.step, int) else multiple(round(value), self.step)
        return round(value) if self.integer else float(value)

    def encode(self, value: Any) -> Any:
        """Return what the library would have chosen for a value."""
        if self.step is not None:
            return round(value / self.step)
        return int(value) if self.integer else float(value)


@dataclass(frozen=True)
class Options:
    """One of some values, which the library knows by their numbers."""

    values: Sequence[Any]

    @property
    def single(self) -> bool:
        """Whether there is one value only, so that there is nothing to choose."""
        return len(self.values) == 1

    def decode(self, value: Any) -> Any:
        """Return the value of this number."""
        return self.values[int(value)]

    def encode(self, value: Any) -> int:
        """Return the number of a value."""
        for place, option in enumerate(self.values):
            if option is value or printable(option) == printable(value):
                return place
        raise ValueError(f"{value!r} is none of {list(self.values)!r}")


Parameter = Axis | Options


class LibrarySearcher(Searcher):
    """The base of searchers over a library: one file and four methods each.

    Parameters
    ----------
    space : mapping, optional
        The search space, where the experiment has none.
    metric, mode : str, optional
        The experiment's by default.
    points_to_evaluate : sequence of mappings, optional
        Configurations to begin with.
    evaluated_rewards : sequence of float, optional
        What is known of those already: they are not run then, but learned from.
    """

    library = ""
    package = ""

    def __init__(
        self,
        space: Any = None,
        metric: Any = None,
        mode: Any = None,
        points_to_evaluate: Sequence[Mapping[str, Any]] | None = None,
        evaluated_rewards: Sequence[float] | None = None,
    ):
        super().__init__(metric, mode)
        self._module = self._import()
        self._space: dict[str, Any] = {}
        self._own_space = space
        self._points = list(points_to_evaluate or ())
        self._rewards = list(evaluated_rewards or ())
        if self._rewards and len(self._rewards) != len(self._points):
            raise ValueError(
                f"evaluated_rewards has {len(self._rewards)} values for {len(self._points)} points_to_evaluate"
            )
        self._seed = 0
        self._count = 0
        self._parameters: dict[str, Parameter] = {}
        self._paths: dict[str, Path] = {}
        self._constants: dict[Path, Any] = {}
        self._values: dict[str, dict[str, Any]] = {}
        self._ready = False

    def _import(self) -> Any:
        try:
            return importlib.import_module(self.library)
        except ImportError as error:
            name = type(self).__name__
            raise ImportError(f'{name} needs {self.package}: pip install "shoal[{self.package}]"') from error

    def set_search_properties(self, metric: str | None, mode: str | None, config: dict[str, Any], **spec: Any) -> bool:
        super().set_search_properties(metric, mode, config, **spec)
        if self._own_space is not None and next(domains(as_space(config)), None) is not None:
            return False
        if self._metric is None or self._mode is None:
            raise ValueError(f"{type(self).__name__} needs to know what is better: give metric and mode")
        self._seed = spec.get("seed", 0)
        self._space = space = as_space({**config, **self._domains_of(self._own_space)})
        check(space)
        self._open(space)
        for point, reward in zip(self._points, self._rewards, strict=False):
            self._learn(self._encoded(self._completed(point)), self._better(reward))
        if self._rewards:
            self._points.clear()
        self._ready = True
        return True

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        if not self._ready:
            raise ValueError(f"{type(self).__name__} has no search space yet: it is given by a Tuner")
        if self._points:
            values = self._encoded(self._completed(self._points.pop(0)))
            self._impose(trial_id, values)
        else:
            values = self._ask(trial_id)
        return self._suggested(trial_id, values)

    def suggested_before(self, trial_id: str, config: dict[str, Any]) -> dict[str, Any]:
        """Have the library believe that it suggested what it did in an earlier session."""
        if self._points:
            self._points.pop(0)
        try:
            values = self._encoded(config)
        except (ValueError, KeyError, TypeError):
            return config  # the space is another one now
        self._impose(trial_id, values)
        return self._suggested(trial_id, values)

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        values = self._values.pop(trial_id, None)
        if values is None:
            return
        value = score(result or {}, self._metric or "", self._mode or "max")
        self._tell(trial_id, values, None if error or value == -float("inf") else value)

    # ---- what a library does ----------------------------------------------------------------------------------------

    @abstractmethod
    def _begin(self, parameters: Mapping[str, Parameter], seed: int) -> None:
        """Make the optimizer."""

    @abstractmethod
    def _ask(self, trial_id: str) -> dict[str, Any]:
        """Return values in the library's terms."""

    @abstractmethod
    def _tell(self, trial_id: str, values: dict[str, Any], value: float | None) -> None:
        """Take how good these values are, more is better; ``None`` if their trial failed or has no number."""

    def _impose(self, trial_id: str, values: dict[str, Any]) -> None:
        """Take these values as if they had been asked for. Libraries that learn from any values need nothing."""

    def _learn(self, values: dict[str, Any], value: float) -> None:
        """Take how good values are of which no trial is made."""
        self._tell("", values, value)

    # ---- inside -----------------------------------------------------------------------------------------------------

    def _domains_of(self, space: Any) -> dict[str, Any]:
        """Return a space that was given to the searcher itself."""
        if space is not None and not isinstance(space, Mapping):
            raise TypeError(f"space={space!r}: give {type(self).__name__} a mapping of names to domains of shoal.tune")
        return dict(space or {})

    def _open(self, space: dict[str, Any]) -> None:
        for path, domain in domains(space):
            if not isinstance(domain, Computed):
                parameter = self._expressed(named(path), domain)
                if parameter.single:
                    self._constants[path] = parameter.decode(parameter.low if isinstance(parameter, Axis) else 0)
                else:
                    self._parameters[named(path)] = parameter
                    self._paths[named(path)] = path
        if not self._parameters:
            raise ValueError(f"{type(self).__name__} has nothing to search: param_space has no domains in it")
        self._begin(self._parameters, self._seed)

    def _expressed(self, name: str, domain: Domain) -> Parameter:
        """Return a domain in terms that libraries have, or say what to use instead."""
        who = type(self).__name__
        if isinstance(domain, Grid):
            raise ValueError(f"param_space[{name!r}] is a grid, which {who} cannot go through: use tune.choice(...)")
        if isinstance(domain, Normal):
            raise ValueError(f"param_space[{name!r}] has no bounds, which {who} needs: use tune.uniform(lower, upper)")
        if isinstance(domain, Choice):
            for option in domain.values:
                if next(domains(as_space(option)), None) is not None:
                    raise ValueError(
                        f"param_space[{name!r}] is a choice with domains in it, which {who} cannot express: put them "
                        "beside it, or use OptunaSearch"
                    )
            return Options(domain.values)
        if isinstance(domain, (Float, Integer)):
            return axis(domain)
        raise ValueError(f"param_space[{name!r}]: {who} does not know {type(domain).__name__}")

    def _completed(self, point: Mapping[str, Any]) -> dict[str, Any]:
        """Return a configuration from a part of one; the rest is drawn."""
        self._count += 1
        config: dict[str, Any] = resolve(with_point(self._space, point), Random(f"{self._seed}//{self._count}"))
        return config

    def _encoded(self, config: Mapping[str, Any]) -> dict[str, Any]:
        return {name: self._parameters[name].encode(_at(config, path)) for name, path in self._paths.items()}

    def _suggested(self, trial_id: str, values: dict[str, Any]) -> dict[str, Any]:
        self._values[trial_id] = values
        chosen = {path: self._parameters[name].decode(values[name]) for name, path in self._paths.items()}
        fixed = {**self._constants, **chosen}
        config: dict[str, Any] = resolve(self._space, Random(f"{self._seed}//{trial_id}"), fixed)
        return config

    def _better(self, reward: float) -> float:
        return reward if self._mode == "max" else -reward


def axis(domain: Float | Integer) -> Axis:
    """Return a number's domain with both bounds included, in steps where it has them."""
    if domain.q is not None:
        first, last = multiples(domain.lower, domain.upper, domain.q)
        return Axis(first, last, domain.log and first > 0, integer=True, step=domain.q)
    if isinstance(domain, Integer):
        return Axis(domain.lower, domain.upper - 1, domain.log, integer=True)
    return Axis(domain.lower, domain.upper, domain.log, integer=False)


def _at(config: Any, path: Path) -> Any:
    for part in path:
        config = config[part]
    return config
