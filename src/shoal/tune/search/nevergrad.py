"""Nevergrad: evolution strategies and many other optimizers without gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shoal.tune.search.library import LibrarySearcher, Options, Parameter


class NevergradSearch(LibrarySearcher):
    """Suggests by an optimizer of the library Nevergrad.

    Parameters
    ----------
    optimizer : class or str, optional
        One of ``nevergrad.optimizers``, or its name; ``NGOpt``, which chooses by itself, by default.
    optimizer_kwargs : mapping, optional
        What it is made with, such as ``budget``; as many suggestions as the experiment makes by default.
    space : mapping, optional
        The search space, where the experiment has none.
    metric, mode : str, optional
        The experiment's by default.
    points_to_evaluate : sequence of mappings, optional
        Configurations, or parts of them, to begin with.
    evaluated_rewards : sequence of float, optional
        What is known of ``points_to_evaluate``: they are not run then.
    """

    library = "nevergrad"
    package = "nevergrad"

    def __init__(
        self,
        optimizer: Any = None,
        optimizer_kwargs: Mapping[str, Any] | None = None,
        space: Mapping[str, Any] | None = None,
        metric: str | None = None,
        mode: str | None = None,
        points_to_evaluate: Sequence[Mapping[str, Any]] | None = None,
        evaluated_rewards: Sequence[float] | None = None,
    ):
        super().__init__(space, metric, mode, points_to_evaluate, evaluated_rewards)
        registry = self._module.optimizers.registry
        if isinstance(optimizer, str) and optimizer not in registry:
            raise ValueError(f"optimizer={optimizer!r}: Nevergrad has none of this name; see nevergrad.optimizers")
        self._kind = registry[optimizer or "NGOpt"] if optimizer is None or isinstance(optimizer, str) else optimizer
        self._arguments = dict(optimizer_kwargs or {})
        self._budget = 100
        self._candidates: dict[str, Any] = {}

    def set_search_properties(self, metric: str | None, mode: str | None, config: dict[str, Any], **spec: Any) -> bool:
        self._budget = max(spec.get("num_samples", 0), 0) or 100
        return super().set_search_properties(metric, mode, config, **spec)

    def _begin(self, parameters: Mapping[str, Parameter], seed: int) -> None:
        import numpy as np

        terms = {name: self._term(parameter) for name, parameter in parameters.items()}
        self._parametrization = self._module.p.Dict(**terms)
        self._parametrization.random_state = np.random.RandomState(seed)
        self._optimizer = self._kind(self._parametrization, **{"budget": self._budget, **self._arguments})

    def _ask(self, trial_id: str) -> dict[str, Any]:
        candidate = self._candidates[trial_id] = self._optimizer.ask()
        return dict(candidate.value)

    def _impose(self, trial_id: str, values: dict[str, Any]) -> None:
        self._candidates[trial_id] = self._optimizer.parametrization.spawn_child(new_value=values)

    def _tell(self, trial_id: str, values: dict[str, Any], value: float | None) -> None:
        if trial_id not in self._candidates:
            self._impose(trial_id, values)
        candidate = self._candidates.pop(trial_id)
        self._optimizer.tell(candidate, float("inf") if value is None else -value)

    def _term(self, parameter: Parameter) -> Any:
        """Return a parameter as Nevergrad writes it."""
        p = self._module.p
        if isinstance(parameter, Options):
            return p.Choice(list(range(len(parameter.values))))
        if parameter.log:
            term = p.Log(lower=parameter.low, upper=parameter.high)
        else:
            term = p.Scalar(lower=parameter.low, upper=parameter.high)
        return term.set_integer_casting() if parameter.integer else term
