"""The functions that make a search space: ``tune.uniform(0, 1)`` and the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from shoal._core.domains import Choice, Computed, Domain, Float, Integer, Normal


def _checked(call: str, domain: Domain) -> Domain:
    wrong = domain.check()
    if wrong:
        raise ValueError(f"tune.{call}: {wrong}")
    return domain


def uniform(lower: float, upper: float) -> Domain:
    """A number between two bounds, each as likely.

    Examples
    --------
    >>> from shoal import tune
    >>> space = {"momentum": tune.uniform(0.5, 0.99)}
    """
    return _checked("uniform", Float(lower, upper))


def quniform(lower: float, upper: float, q: float) -> Domain:
    """A multiple of ``q`` from ``lower`` to ``upper``, both included, each as likely.

    Examples
    --------
    >>> from random import Random
    >>> from shoal import tune
    >>> tune.quniform(0.1, 0.3, 0.1).draw(Random(0)) in {0.1, 0.2, 0.3}
    True
    """
    return _checked("quniform", Float(lower, upper, q=q))


def loguniform(lower: float, upper: float, base: float = 10) -> Domain:
    """A number between two bounds of more than 0, each order of magnitude as likely. Nothing depends on ``base``.

    Examples
    --------
    >>> from shoal import tune
    >>> space = {"lr": tune.loguniform(1e-5, 1e-1)}
    """
    return _checked("loguniform", Float(lower, upper, log=True))


def qloguniform(lower: float, upper: float, q: float, base: float = 10) -> Domain:
    """A multiple of ``q`` from ``lower`` to ``upper``, each order of magnitude as likely."""
    return _checked("qloguniform", Float(lower, upper, log=True, q=q))


def randn(mean: float = 0.0, sd: float = 1.0) -> Domain:
    """A number from the normal distribution with this mean and standard deviation."""
    return _checked("randn", Normal(mean, sd))


def qrandn(mean: float, sd: float, q: float) -> Domain:
    """A number from the normal distribution, rounded to the nearest multiple of ``q``."""
    return _checked("qrandn", Normal(mean, sd, q))


def randint(lower: int, upper: int) -> Domain:
    """A whole number from ``lower`` up to, but not with, ``upper``, each as likely.

    Examples
    --------
    >>> from random import Random
    >>> from shoal import tune
    >>> tune.randint(3, 4).draw(Random(0))
    3
    """
    return _checked("randint", Integer(lower, upper))


def qrandint(lower: int, upper: int, q: int = 1) -> Domain:
    """A multiple of ``q`` from ``lower`` to ``upper``, both included, each as likely.

    Examples
    --------
    >>> from random import Random
    >>> from shoal import tune
    >>> tune.qrandint(1, 10, 3).draw(Random(0)) in {3, 6, 9}
    True
    """
    return _checked("qrandint", Integer(lower, upper, q=q))


def lograndint(lower: int, upper: int, base: float = 10) -> Domain:
    """A whole number from ``lower`` up to, but not with, ``upper``, each order of magnitude as likely."""
    return _checked("lograndint", Integer(lower, upper, log=True, base=base))


def qlograndint(lower: int, upper: int, q: int, base: float = 10) -> Domain:
    """A multiple of ``q`` from ``lower`` to ``upper``, both included, each order of magnitude as likely."""
    return _checked("qlograndint", Integer(lower, upper, log=True, q=q, base=base))


def choice(categories: Iterable[Any]) -> Domain:
    """One of some values, each as likely. What has domains in it is drawn further when it was chosen.

    Examples
    --------
    >>> from shoal import tune
    >>> space = {"optimizer": tune.choice([{"name": "adam"}, {"name": "sgd", "momentum": tune.uniform(0.5, 0.99)}])}
    """
    return _checked("choice", Choice(tuple(categories)))


def grid_search(values: Iterable[Any]) -> dict[str, list[Any]]:
    """Every one of some values: each is tried ``num_samples`` times, with every value of other grids.

    Examples
    --------
    >>> from shoal import tune
    >>> tune.grid_search([16, 32])
    {'grid_search': [16, 32]}
    """
    return {"grid_search": list(values)}


def sample_from(func: Callable[..., Any]) -> Domain:
    """What a function returns. It may take the configuration as far as it is resolved, and return further domains.

    Examples
    --------
    >>> from shoal import tune
    >>> space = {"width": tune.choice([64, 128]), "heads": tune.sample_from(lambda config: config["width"] // 16)}
    """
    return _checked("sample_from", Computed(func))
