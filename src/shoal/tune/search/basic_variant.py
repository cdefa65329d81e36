"""The searcher that goes through grids and draws everything else at random."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import Any

from shoal._core.space import Path, as_space, check, grids, named, resolve
from shoal._core.trials import Searcher


class BasicVariantGenerator(Searcher):
    """Every point of the grids, ``num_samples`` times, with the other parameters drawn at random.

    The configuration of the n-th trial depends on the seed and on n alone.

    Parameters
    ----------
    points_to_evaluate : sequence of mappings, optional
        Configurations, or parts of them, to begin with; the rest of such a part is drawn. They take the place of the
        first samples.
    max_concurrent : int
        How many trials there are at a time at most; 0 for no limit.
    constant_grid_search : bool
        Whether the random parameters are the same for all points of the grids within a sample.
    random_state : int
        The seed; the experiment's by default.

    Examples
    --------
    >>> from shoal import tune
    >>> from shoal.tune.search import BasicVariantGenerator
    >>> searcher = BasicVariantGenerator(points_to_evaluate=[{"lr": 0.1}])
    >>> space = {"lr": tune.loguniform(1e-4, 1), "batch_size": tune.grid_search([16, 32])}
    >>> searcher.set_search_properties("loss", "min", space, num_samples=1)
    True
    >>> [searcher.suggest(trial_id) for trial_id in ("a", "b", "c")]
    [{'lr': 0.1, 'batch_size': 16}, {'lr': 0.1, 'batch_size': 32}, 'FINISHED']
    """

    counts_samples = True

    def __init__(
        self,
        points_to_evaluate: Sequence[Mapping[str, Any]] | None = None,
        max_concurrent: int = 0,
        constant_grid_search: bool = False,
        random_state: int | None = None,
    ):
        super().__init__()
        self._points = list(points_to_evaluate or ())
        self._limit = max_concurrent
        self._constant = constant_grid_search
        self._seed = random_state
        self._total: int | None = None
        self._configs: Iterator[dict[str, Any]] = iter(())
        self._live: set[str] = set()

    def set_search_properties(self, metric: str | None, mode: str | None, config: dict[str, Any], **spec: Any) -> bool:
        super().set_search_properties(metric, mode, config)
        space = as_space(config)
        check(space)
        if self._seed is None:
            self._seed = spec.get("seed", 0)
        num_samples = spec.get("num_samples", 1)
        self._total = max(num_samples, len(self._points)) * len(grids(space)) if num_samples >= 0 else None
        self._configs = self._all(space, num_samples)
        return True

    def total_samples(self) -> int | None:
        return self._total

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        if self._limit and len(self._live) >= self._limit:
            return None
        config = next(self._configs, None)
        if config is None:
            return self.FINISHED
        self._live.add(trial_id)
        return config

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        self._live.discard(trial_id)

    def _all(self, space: dict[str, Any], num_samples: int) -> Iterator[dict[str, Any]]:
        number, sample = 0, 0
        wanted = max(num_samples, len(self._points)) if num_samples >= 0 else None
        all_points = grids(space)
        while wanted is None or sample < wanted:
            chosen = sample < len(self._points)
            given = with_point(space, self._points[sample]) if chosen else space
            for point in grids(given) if chosen else all_points:
                seed = f"{self._seed}/{sample}" if self._constant else f"{self._seed}//{number}"
                yield resolve(given, Random(seed), point)
                number += 1
            sample += 1


def with_point(space: Any, point: Mapping[str, Any], path: Path = ()) -> Any:
    """Return a space in which the parameters of a point have its values.

    Raises
    ------
    ValueError
        If the point has a parameter that the space has not.
    """
    if not isinstance(space, Mapping):
        raise ValueError(f"points_to_evaluate: {named(path)!r} has no parameters in it, but a point has")
    changed = dict(space)
    for key, value in point.items():
        inner = (*path, *key.split("/")) if key not in space and "/" in key else (*path, key)
        first = inner[len(path)]
        if first not in space:
            known = ", ".join(sorted(map(str, space)))
            raise ValueError(f"points_to_evaluate: {named(inner)!r} is not in param_space, which has: {known}")
        if len(inner) > len(path) + 1:
            changed[first] = with_point(changed[first], {"/".join(map(str, inner[len(path) + 1 :])): value}, inner[:1])
        elif isinstance(value, Mapping) and isinstance(space[first], Mapping):
            changed[first] = with_point(changed[first], value, inner)
        else:
            changed[first] = value
    return changed
