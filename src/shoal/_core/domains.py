"""What a parameter may be: domains, each of which draws a value with a random generator that it is given.

Steps (``q``) are exact: a value is a multiple of the step within the bounds, both of which belong to it, and every such
multiple is drawn as often as the distribution says. Integers without a step exclude the upper bound, as ``range`` does.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from random import Random
from typing import Any


class Domain(ABC):
    """The values that one parameter may have."""

    @abstractmethod
    def draw(self, rng: Random) -> Any:
        """Return one value."""

    @abstractmethod
    def check(self) -> str:
        """Return what is wrong with the bounds; empty if nothing is."""


@dataclass(frozen=True)
class Float(Domain):
    """A number from ``lower`` to ``upper``, evenly, or (``log``) evenly in its logarithm; in steps of ``q``."""

    lower: float
    upper: float
    log: bool = False
    q: float | None = None

    def check(self) -> str:
        return _wrong_bounds(self, math.isfinite(self.lower) and math.isfinite(self.upper), self.lower <= self.upper)

    def draw(self, rng: Random) -> float:
        if self.q is None:
            return _between(rng, self.lower, self.upper, self.log)
        first, last = multiples(self.lower, self.upper, self.q)
        if not self.log:
            return multiple(rng.randint(first, last), self.q)
        return multiple(_step(rng, self, first, last, self.q), self.q)


@dataclass(frozen=True)
class Integer(Domain):
    """A whole number from ``lower`` up to, but not with, ``upper``; with a step, a multiple of it up to ``upper``.

    Evenly, or (``log``) evenly in its logarithm. ``base`` is that of the logarithm, on which nothing depends.
    """

    lower: int
    upper: int
    log: bool = False
    q: int | None = None
    base: float = 10

    def check(self) -> str:
        for name, value in (("lower", self.lower), ("upper", self.upper), ("q", self.q)):
            if value is not None and (isinstance(value, bool) or value != int(value)):
                return f"{name}={value!r} is no whole number"
        return _wrong_bounds(self, True, self.lower < self.upper + (self.q is not None))

    def draw(self, rng: Random) -> int:
        if self.q is None:
            if not self.log:
                return rng.randrange(self.lower, self.upper)
            return min(int(_between(rng, self.lower, self.upper, True)), self.upper - 1)
        first, last = multiples(self.lower, self.upper, self.q)
        if not self.log:
            return rng.randint(first, last) * self.q
        return _step(rng, self, first, last, self.q) * self.q


@dataclass(frozen=True)
class Normal(Domain):
    """A number from the normal distribution, rounded to the nearest multiple of ``q`` if given."""

    mean: float = 0.0
    sd: float = 1.0
    q: float | None = None

    def check(self) -> str:
        if not self.sd > 0:
            return f"sd={self.sd!r} must be more than 0"
        return "" if self.q is None or self.q > 0 else f"q={self.q!r} must be more than 0"

    def draw(self, rng: Random) -> float:
        value = rng.gauss(self.mean, self.sd)
        return value if self.q is None else multiple(round(value / self.q), self.q)


@dataclass(frozen=True)
class Choice(Domain):
    """One of some values, each as likely. A value may be, or have in it, further domains, which are drawn then."""

    values: Sequence[Any]

    def check(self) -> str:
        return "" if len(self.values) else "there is nothing to choose from"

    def draw(self, rng: Random) -> Any:
        return self.values[rng.randrange(len(self.values))]


@dataclass(frozen=True)
class Grid(Domain):
    """Every one of some values, in trials of their own."""

    values: Sequence[Any]

    def check(self) -> str:
        return "" if len(self.values) else "the grid is empty"

    def draw(self, rng: Random) -> Any:
        raise AssertionError("a grid is gone through, not drawn from")


@dataclass(frozen=True)
class Computed(Domain):
    """What a function returns, which may see the parameters that are resolved already."""

    function: Callable[..., Any]

    def check(self) -> str:
        return "" if callable(self.function) else f"{self.function!r} cannot be called"

    def draw(self, rng: Random) -> Any:
        raise AssertionError("a function needs the rest of the configuration")


def multiples(lower: float, upper: float, q: float) -> tuple[int, int]:
    """Return the first and the last whole number whose product with ``q`` lies within the bounds, exactly."""
    step = Decimal(str(q))
    first = (Decimal(str(lower)) / step).to_integral_value(ROUND_CEILING)
    last = (Decimal(str(upper)) / step).to_integral_value(ROUND_FLOOR)
    return int(first), int(last)


def multiple(count: int, q: float) -> float:
    """Return the product, exact as decimals are."""
    return float(count * Decimal(str(q)))


def _between(rng: Random, lower: float, upper: float, log: bool) -> float:
    if not log:
        return rng.uniform(lower, upper)
    value = math.exp(rng.uniform(math.log(lower), math.log(upper)))
    return min(max(value, lower), upper)  # the way through the logarithm may lead a hair beyond


def _step(rng: Random, domain: Float | Integer, first: int, last: int, q: float) -> int:
    """Return a number of steps from ``first`` to ``last``, evenly in the logarithm of what lies nearest to each."""
    lower, upper = max(domain.lower, (first - 0.5) * q), min(domain.upper, (last + 0.5) * q)
    return min(max(round(_between(rng, lower, upper, True) / q), first), last)


def _wrong_bounds(domain: Float | Integer, finite: bool, ordered: bool) -> str:
    bounds = f"lower={domain.lower!r}, upper={domain.upper!r}"
    if not finite:
        return f"{bounds}: bounds must be finite"
    if not ordered:
        return f"{bounds}: nothing lies between these bounds"
    if domain.log and not domain.lower > 0:
        return f"{bounds}: a logarithm needs bounds of more than 0"
    if domain.q is not None:
        if not domain.q > 0:
            return f"q={domain.q!r} must be more than 0"
        first, last = multiples(domain.lower, domain.upper, domain.q)
        if first > last:
            return f"{bounds}, q={domain.q!r}: no multiple of the step lies between the bounds"
    return ""
