"""Ax: adaptive experiments with Bayesian optimization on BoTorch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shoal.tune.search.library import LibrarySearcher, Options, Parameter

OBJECTIVE = "objective"


class AxSearch(LibrarySearcher):
    """Suggests by the library Ax.

    Parameters
    ----------
    space : mapping, optional
        The search space, where the experiment has none.
    metric, mode : str, optional
        The experiment's by default.
    points_to_evaluate : sequence of mappings, optional
        Configurations, or parts of them, to begin with.
    parameter_constraints : sequence of str, optional
        Inequalities between parameters: ``"x1 + x2 <= 2"``.
    outcome_constraints : sequence of str, optional
        Inequalities of other metrics, which are reported too: ``"latency <= 3"``.
    ax_client : ax.api.client.Client, optional
        A client that is made already, without an experiment.
    evaluated_rewards : sequence of float, optional
        What is known of ``points_to_evaluate``: they are not run then.
    **ax_kwargs
        Further arguments of ``Client.configure_experiment``.
    """

    library = "ax.api.client"
    package = "ax"

    def __init__(
        self,
        space: Mapping[str, Any] | None = None,
        metric: str | None = None,
        mode: str | None = None,
        points_to_evaluate: Sequence[Mapping[str, Any]] | None = None,
        parameter_constraints: Sequence[str] | None = None,
        outcome_constraints: Sequence[str] | None = None,
        ax_client: Any = None,
        evaluated_rewards: Sequence[float] | None = None,
        **ax_kwargs: Any,
    ):
        super().__init__(space, metric, mode, points_to_evaluate, evaluated_rewards)
        self._constraints, self._outcomes = list(parameter_constraints or ()), list(outcome_constraints or ())
        self._client = ax_client
        self._arguments = ax_kwargs
        self._numbers: dict[str, int] = {}
        self._others: dict[str, dict[str, float]] = {}

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        wanted = {constraint.split()[0] for constraint in self._outcomes}
        self._others[trial_id] = {name: float((result or {})[name]) for name in wanted if name in (result or {})}
        super().on_trial_complete(trial_id, result, error)

    def _begin(self, parameters: Mapping[str, Parameter], seed: int) -> None:
        import logging

        logging.getLogger("ax").setLevel(logging.WARNING)
        self._names = {name: self._plain_name(name) for name in parameters}
        client = self._client = self._client or self._module.Client(random_seed=seed)
        client.configure_experiment(
            parameters=[self._term(self._names[name], parameter) for name, parameter in parameters.items()],
            parameter_constraints=self._constraints,
            **self._arguments,
        )
        client.configure_optimization(objective=OBJECTIVE, outcome_constraints=self._outcomes or None)

    def _ask(self, trial_id: str) -> dict[str, Any]:
        ((number, values),) = self._client.get_next_trials(max_trials=1).items()
        self._numbers[trial_id] = number
        return {name: values[plain] for name, plain in self._names.items()}

    def _impose(self, trial_id: str, values: dict[str, Any]) -> None:
        named = {self._names[name]: value for name, value in values.items()}
        self._numbers[trial_id] = self._client.attach_trial(parameters=named)

    def _tell(self, trial_id: str, values: dict[str, Any], value: float | None) -> None:
        if trial_id not in self._numbers:
            self._impose(trial_id, values)
        number = self._numbers.pop(trial_id)
        others = self._others.pop(trial_id, {})
        if value is None:
            self._client.mark_trial_failed(number)
        else:
            self._client.complete_trial(number, {OBJECTIVE: value, **others})

    def _plain_name(self, name: str) -> str:
        return name if name.isidentifier() else f"p{len(name)}_" + "".join(c if c.isalnum() else "_" for c in name)

    def _term(self, name: str, parameter: Parameter) -> Any:
        """Return a parameter as Ax writes it."""
        from ax.api.configs import ChoiceParameterConfig, RangeParameterConfig

        if isinstance(parameter, Options):
            numbers = list(range(len(parameter.values)))
            return ChoiceParameterConfig(name=name, values=numbers, parameter_type="int", is_ordered=False)
        return RangeParameterConfig(
            name=name,
            bounds=(parameter.low, parameter.high),
            parameter_type="int" if parameter.integer else "float",
            scaling="log" if parameter.log else "linear",
        )
