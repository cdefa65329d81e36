"""What a trial takes, and objects that all trials share: ``with_resources`` and ``with_parameters``."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from shoal._core.scaling import GroupRequest

NAMES = {"cpu": "CPU", "gpu": "GPU"}
Asked = Any


class PlacementGroupFactory:
    """Several bundles of resources that a trial takes together: the first is the trial's own, the others its helpers'.

    The function of the trial runs in one process, which has all of them.

    Parameters
    ----------
    bundles : sequence of mappings
        What each takes: ``{"CPU": 1, "GPU": 0.5}``.
    strategy : str
        ``PACK``, ``SPREAD``, ``STRICT_PACK`` or ``STRICT_SPREAD``, for engines with several machines.

    Examples
    --------
    >>> PlacementGroupFactory([{"CPU": 1}, {"CPU": 2, "GPU": 1}]).required_resources
    {'CPU': 3.0, 'GPU': 1.0}
    """

    def __init__(self, bundles: Sequence[Mapping[str, float]], strategy: str = "PACK"):
        if not bundles:
            raise ValueError("bundles=[]: give one bundle of resources or more, such as [{'CPU': 1}]")
        self.bundles = [_checked(bundle, f"bundles[{place}]") for place, bundle in enumerate(bundles)]
        self.strategy = strategy

    @property
    def required_resources(self) -> dict[str, float]:
        """What all bundles take together."""
        total: dict[str, float] = {}
        for bundle in self.bundles:
            for name, amount in bundle.items():
                total[name] = total.get(name, 0.0) + amount
        return total


def with_resources(trainable: Any, resources: Asked) -> Any:
    """Return a trainable whose trials take these resources.

    Parameters
    ----------
    trainable : callable or class
        A function of a configuration, or a :class:`~shoal.tune.Trainable`.
    resources : mapping, PlacementGroupFactory, ScalingConfig, or callable
        ``{"cpu": 2, "gpu": 1}``; or a function that returns this for a trial's configuration.

    Examples
    --------
    >>> from shoal import tune
    >>> def objective(config):
    ...     return {"loss": config["x"] ** 2}
    >>> tuner = tune.Tuner(tune.with_resources(objective, {"cpu": 2}), param_space={"x": tune.uniform(-1, 1)})
    """
    if not callable(resources):
        request_of(resources)  # a mistake is told here, and not when the first trial starts
    named = _copy(trainable)
    named._shoal_resources = resources
    return named


def resources_of(trainable: Any) -> Asked | None:
    """Return what :func:`with_resources` has given a trainable."""
    return getattr(trainable, "_shoal_resources", None)


def request_of(resources: Asked) -> GroupRequest:
    """Return resources as what an engine is asked for.

    Raises
    ------
    ValueError
        If an amount is not possible.
    """
    scaling = getattr(resources, "request", None)
    if scaling is not None:
        asked: GroupRequest = scaling()
        return asked
    strategy = "PACK"
    if isinstance(resources, PlacementGroupFactory):
        resources, strategy = resources.required_resources, resources.strategy
    if not isinstance(resources, Mapping):
        raise TypeError(
            f"resources={resources!r}: give a mapping such as {{'cpu': 2, 'gpu': 1}}, a PlacementGroupFactory, a "
            "ScalingConfig, or a function of the configuration that returns one of these"
        )
    amounts = _checked(resources, "resources")
    explicit = frozenset(amounts)
    return GroupRequest(
        min_workers=1, max_workers=1, resources={"CPU": 1.0, **amounts}, explicit=explicit, strategy=strategy
    )


def _checked(resources: Mapping[str, Any], where: str) -> dict[str, float]:
    amounts: dict[str, float] = {}
    for key, amount in resources.items():
        if isinstance(amount, bool) or not isinstance(amount, (int, float)) or not amount >= 0:
            raise ValueError(f"{where}[{key!r}]={amount!r}: give a number, 0 or more")
        name = NAMES.get(key, key)
        if name == "GPU" and amount != int(amount):
            raise ValueError(f"{where}[{key!r}]={amount!r}: a trial has whole GPUs")
        amounts[name] = float(amount)
    return amounts


def _copy(trainable: Any) -> Any:
    """Return another trainable that does the same, so that what is attached to it is not attached to the user's."""
    if isinstance(trainable, type):
        return type(
            trainable.__name__, (trainable,), {"__module__": trainable.__module__, "__doc__": trainable.__doc__}
        )
    if hasattr(trainable, "__dict__") and not hasattr(trainable, "__code__"):
        return copy.copy(trainable)
    return _Function(trainable)


class _Function:
    """A function that something can be attached to."""

    def __init__(self, function: Callable[..., Any]):
        self.function = function
        self.__name__ = getattr(function, "__name__", type(function).__name__)
        self.__qualname__ = getattr(function, "__qualname__", self.__name__)
        self.__wrapped__ = function

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self.function(*arguments, **named)
