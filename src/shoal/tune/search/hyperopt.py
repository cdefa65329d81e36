"""HyperOpt: tree-structured Parzen estimators."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from shoal.tune.search.library import LibrarySearcher, Options, Parameter

NEW, DONE, ERROR = 0, 2, 3  # how HyperOpt numbers the states of its trials


class HyperOptSearch(LibrarySearcher):
    """Suggests by a tree-structured Parzen estimator of the library HyperOpt.

    Bergstra et al., *Algorithms for Hyper-Parameter Optimization*, NIPS 2011.

    Parameters
    ----------
    space : mapping, optional
        The search space, where the experiment has none.
    metric, mode : str, optional
        The experiment's by default.
    points_to_evaluate : sequence of mappings, optional
        Configurations, or parts of them, to begin with.
    n_initial_points : int
        How many suggestions are random, before the estimator begins.
    random_state_seed : int, optional
        The seed; the experiment's by default.
    gamma : float
        The share of the trials that counts as good.
    evaluated_rewards : sequence of float, optional
        What is known of ``points_to_evaluate``: they are not run then.
    """

    library = "hyperopt"
    package = "hyperopt"

    def __init__(
        self,
        space: Mapping[str, Any] | None = None,
        metric: str | None = None,
        mode: str | None = None,
        points_to_evaluate: Sequence[Mapping[str, Any]] | None = None,
        n_initial_points: int = 20,
        random_state_seed: int | None = None,
        gamma: float = 0.25,
        evaluated_rewards: Sequence[float] | None = None,
    ):
        super().__init__(space, metric, mode, points_to_evaluate, evaluated_rewards)
        self._own_seed = random_state_seed
        self._algorithm = functools.partial(
            self._module.tpe.suggest, n_startup_jobs=n_initial_points, gamma=gamma, verbose=False
        )
        self._docs: dict[str, dict[str, Any]] = {}

    def _begin(self, parameters: Mapping[str, Parameter], seed: int) -> None:
        import numpy as np

        space = {name: self._term(name, parameter) for name, parameter in parameters.items()}
        self._domain = self._module.base.Domain(lambda values: values, space)
        self._trials = self._module.Trials()
        self._rng = np.random.default_rng(seed if self._own_seed is None else self._own_seed)

    def _ask(self, trial_id: str) -> dict[str, Any]:
        ids = self._trials.new_trial_ids(1)
        self._trials.refresh()
        (doc,) = self._algorithm(ids, self._domain, self._trials, int(self._rng.integers(2**31 - 1)))
        self._insert(trial_id, doc)
        return {name: values[0] for name, values in doc["misc"]["vals"].items()}

    def _impose(self, trial_id: str, values: dict[str, Any]) -> None:
        (number,) = self._trials.new_trial_ids(1)
        self._rng.integers(2**31 - 1)  # as if it had been asked
        misc = {
            "tid": number,
            "cmd": self._domain.cmd,
            "workdir": self._domain.workdir,
            "idxs": {name: [number] for name in values},
            "vals": {name: [value] for name, value in values.items()},
        }
        (doc,) = self._trials.new_trial_docs([number], [None], [self._domain.new_result()], [misc])
        self._insert(trial_id, doc)

    def _tell(self, trial_id: str, values: dict[str, Any], value: float | None) -> None:
        if trial_id not in self._docs:
            self._impose(trial_id, values)
        doc = self._docs.pop(trial_id)
        if value is None:
            doc["state"], doc["result"] = ERROR, {"status": "fail"}
        else:
            doc["state"], doc["result"] = DONE, {"status": "ok", "loss": -value}
        self._trials.refresh()

    def _insert(self, trial_id: str, doc: dict[str, Any]) -> None:
        self._trials.insert_trial_docs([doc])
        self._trials.refresh()
        self._docs[trial_id] = self._trials._dynamic_trials[-1]

    def _term(self, name: str, parameter: Parameter) -> Any:
        """Return a parameter as HyperOpt writes it."""
        hp = self._module.hp
        if isinstance(parameter, Options):
            return hp.randint(name, len(parameter.values))
        low, high = parameter.low, parameter.high
        if parameter.log and parameter.integer:
            return hp.qloguniform(name, math.log(low), math.log(high), 1)
        if parameter.log:
            return hp.loguniform(name, math.log(low), math.log(high))
        if parameter.integer:
            return hp.quniform(name, low - 0.5, high + 0.5, 1)
        return hp.uniform(name, low, high)
