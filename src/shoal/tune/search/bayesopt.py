"""Bayesian optimization with Gaussian processes, by scikit-optimize."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shoal.tune.search.library import LibrarySearcher, Options, Parameter

KINDS = {"ucb": "LCB", "ei": "EI", "poi": "PI"}


class BayesOptSearch(LibrarySearcher):
    """Suggests by a Gaussian process of the library scikit-optimize.

    Snoek et al., *Practical Bayesian Optimization of Machine Learning Algorithms*, NIPS 2012.

    Parameters
    ----------
    space : mapping, optional
        The search space, where the experiment has none.
    metric, mode : str, optional
        The experiment's by default.
    points_to_evaluate : sequence of mappings, optional
        Configurations, or parts of them, to begin with.
    utility_kwargs : mapping, optional
        ``kind`` (``"ucb"``, ``"ei"`` or ``"poi"``), ``kappa`` and ``xi`` of the acquisition function; a mixture of the
        three by default.
    random_state : int, optional
        The seed; the experiment's if it is ``None``.
    random_search_steps : int
        How many suggestions are random, before the process begins.
    verbose, patience, skip_duplicate, analysis, repeat_float_precision : object
        Accepted so that scripts move over.
    evaluated_rewards : sequence of float, optional
        What is known of ``points_to_evaluate``: they are not run then.
    """

    library = "skopt"
    package = "bayesopt"

    def __init__(
        self,
        space: Mapping[str, Any] | None = None,
        metric: str | None = None,
        mode: str | None = None,
        points_to_evaluate: Sequence[Mapping[str, Any]] | None = None,
        utility_kwargs: Mapping[str, Any] | None = None,
        random_state: int | None = 42,
        random_search_steps: int = 10,
        verbose: int = 0,
        patience: int = 5,
        skip_duplicate: bool = True,
        analysis: Any = None,
        repeat_float_precision: int = 5,
        evaluated_rewards: Sequence[float] | None = None,
    ):
        super().__init__(space, metric, mode, points_to_evaluate, evaluated_rewards)
        utility = dict(utility_kwargs or {})
        kind = utility.pop("kind", None)
        if kind is not None and kind not in KINDS:
            raise ValueError(f"utility_kwargs['kind']={kind!r}: choose one of {', '.join(KINDS)}")
        self._acquisition = KINDS[kind] if kind else "gp_hedge"
        self._utility = {key: value for key, value in utility.items() if key in {"kappa", "xi"}}
        self._own_seed = random_state
        self._steps = random_search_steps

    def _begin(self, parameters: Mapping[str, Parameter], seed: int) -> None:
        self._names = list(parameters)
        self._optimizer = self._module.Optimizer(
            [self._term(name, parameter) for name, parameter in parameters.items()],
            n_initial_points=self._steps,
            acq_func=self._acquisition,
            acq_func_kwargs=self._utility or None,
            random_state=seed if self._own_seed is None else self._own_seed,
        )

    def _ask(self, trial_id: str) -> dict[str, Any]:
        import warnings

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of points that it has suggested before, which small spaces have
            point = self._optimizer.ask()
        return dict(
            zip(self._names, (getattr(value, "item", lambda value=value: value)() for value in point), strict=True)
        )

    def _tell(self, trial_id: str, values: dict[str, Any], value: float | None) -> None:
        if value is not None:  # a Gaussian process has no use for a trial without a number
            self._optimizer.tell([values[name] for name in self._names], -value)

    def _term(self, name: str, parameter: Parameter) -> Any:
        """Return a parameter as scikit-optimize writes it."""
        space = self._module.space
        if isinstance(parameter, Options):
            return space.Categorical(list(range(len(parameter.values))), name=name)
        kind = space.Integer if parameter.integer else space.Real
        return kind(parameter.low, parameter.high, prior="log-uniform" if parameter.log else "uniform", name=name)
