"""Searchers around a searcher: fewer trials at a time, or each configuration several times."""

from __future__ import annotations

import math
import statistics
from typing import Any

from shoal._core.retention import lookup
from shoal._core.trials import Searcher

TRIAL_INDEX = "__trial_index__"


class _Around(Searcher):
    """Passes on to another searcher what it does not do itself."""

    def __init__(self, searcher: Searcher):
        super().__init__(searcher.metric, searcher.mode)
        self.searcher = searcher

    @property
    def metric(self) -> str | None:
        return self.searcher.metric

    @property
    def mode(self) -> str | None:
        return self.searcher.mode

    def set_search_properties(self, metric: str | None, mode: str | None, config: dict[str, Any], **spec: Any) -> bool:
        return self.searcher.set_search_properties(metric, mode, config, **spec)

    @property
    def counts_samples(self) -> bool:  # type: ignore[override]
        return self.searcher.counts_samples

    def total_samples(self) -> int | None:
        return self.searcher.total_samples()

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        self.searcher.on_trial_result(trial_id, result)


class ConcurrencyLimiter(_Around):
    """Lets a searcher have only so many trials at a time, so that it learns from one before it suggests the next.

    Parameters
    ----------
    searcher : Searcher
        What suggests.
    max_concurrent : int
        How many trials there are at a time at most.
    batch : bool
        Whether new ones begin only when all are done, and the searcher learns of them together.

    Examples
    --------
    >>> from shoal.tune.search import BasicVariantGenerator, ConcurrencyLimiter
    >>> searcher = ConcurrencyLimiter(BasicVariantGenerator(), max_concurrent=2)
    """

    def __init__(self, searcher: Searcher, max_concurrent: int, batch: bool = False):
        super().__init__(searcher)
        if max_concurrent < 1:
            raise ValueError(f"max_concurrent={max_concurrent!r}: give 1 or more")
        self._limit = max_concurrent
        self._batch = batch
        self._live: set[str] = set()
        self._ended: list[tuple[str, dict[str, Any] | None, bool]] = []

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        if len(self._live) + len(self._ended) >= self._limit:
            return None
        config = self.searcher.suggest(trial_id)
        if isinstance(config, dict):
            self._live.add(trial_id)
        return config

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        self._live.discard(trial_id)
        self._ended.append((trial_id, result, error))
        if self._batch and self._live:
            return
        ended, self._ended = self._ended, []
        for one in ended:
            self.searcher.on_trial_complete(*one)


class Repeater(_Around):
    """Runs every suggestion several times and tells the searcher the mean of its metric.

    Parameters
    ----------
    searcher : Searcher
        What suggests.
    repeat : int
        How often each configuration is run.
    set_index : bool
        Whether the configuration says the how-manieth run it is, from 0, under ``"__trial_index__"``: a seed, say.

    Examples
    --------
    >>> from shoal.tune.search import BasicVariantGenerator, Repeater
    >>> searcher = Repeater(BasicVariantGenerator(), repeat=3)
    """

    def __init__(self, searcher: Searcher, repeat: int = 1, set_index: bool = True):
        super().__init__(searcher)
        if repeat < 1:
            raise ValueError(f"repeat={repeat!r}: give 1 or more")
        self._repeat = repeat
        self._set_index = set_index
        self._config: dict[str, Any] = {}
        self._given = repeat
        self._group: list[str] = []
        self._groups: dict[str, list[str]] = {}
        self._results: dict[str, dict[str, Any] | None] = {}

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        if self._given == self._repeat:
            config = self.searcher.suggest(trial_id)
            if not isinstance(config, dict):
                return config
            self._config, self._group, self._given = config, [], 0
        index, self._given = self._given, self._given + 1
        self._group.append(trial_id)
        self._groups[trial_id] = self._group
        return {**self._config, TRIAL_INDEX: index} if self._set_index else dict(self._config)

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """The searcher is told of the mean at the end only."""

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        self._results[trial_id] = None if error else result
        group = self._groups.pop(trial_id)
        if len(group) < self._repeat or any(member in self._groups for member in group):
            return
        results = [found for member in group if (found := self._results.pop(member)) is not None]
        values = [lookup(found, self.metric or "") for found in results]
        numbers = [float(value) for value in values if isinstance(value, (int, float)) and not math.isnan(value)]
        if not numbers:
            self.searcher.on_trial_complete(group[0], error=True)
            return
        self.searcher.on_trial_complete(group[0], {**results[-1], self.metric or "": statistics.fmean(numbers)})
