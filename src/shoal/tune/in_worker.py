"""What runs in the worker of a trial: the user's function, or the loop around a ``Trainable``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from shoal._worker import session as sessions
from shoal.train.plain import PlainFramework
from shoal.train.reporting import report

if TYPE_CHECKING:
    from shoal.tune.trainable import Trainable


class TrialFramework(PlainFramework):
    """The framework of trials that are a function or a class: nothing is set up."""

    preload: ClassVar[tuple[str, ...]] = ("shoal.tune.in_worker", "shoal.tune.parameters", "shoal.train.context")


@dataclass(frozen=True)
class FunctionTrial:
    """Calls a function with the configuration; what it returns is a last report.

    ``metric`` names a number that is returned, ``parameters`` are objects that are stored once for all trials.
    """

    function: Callable[..., Any]
    takes_config: bool
    metric: str

    def __call__(self, config: dict[str, Any]) -> None:
        value = self.function(config) if self.takes_config else self.function()
        if value is None:
            return
        if isinstance(value, Mapping):
            report(value)
        else:
            report({self.metric: self._number(value)})

    def _number(self, value: Any) -> float:
        try:
            return value if isinstance(value, (int, float)) else float(value)
        except (TypeError, ValueError):
            name = getattr(self.function, "__qualname__", repr(self.function))
            raise TypeError(
                f"{name} returned a {type(value).__name__}; a trial returns a dict of metrics, one number, or nothing"
            ) from None


@dataclass(frozen=True)
class ClassTrial:
    """Makes a ``Trainable``, or lets the last trial's take the new configuration, and steps until it is done.

    ``frequency`` is every how many reports a checkpoint is saved (0 never); ``at_end`` whether one is at the end.
    """

    kind: type[Trainable]
    frequency: int = 0
    at_end: bool = True
    # Where one process runs trial after trial, the object of the last one is here.
    kept: ClassVar[dict[type, Trainable]] = {}

    def __call__(self, config: dict[str, Any]) -> None:
        trainable = self._trainable(config)
        try:
            trainable.loop(self.frequency, self.at_end)
        except BaseException:
            self.kept.pop(self.kind, None)
            trainable.stop()
            raise
        if sessions.current("a trial").task.reused:
            self.kept[self.kind] = trainable
        else:
            trainable.stop()

    def _trainable(self, config: dict[str, Any]) -> Trainable:
        before = self.kept.pop(self.kind, None)
        if before is not None:
            if before.reset(config):
                return before
            before.stop()
        return self.kind(config)


def takes_argument(function: Callable[..., Any]) -> bool:
    """Whether a function takes the configuration; true for one that does not tell."""
    try:
        return bool(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return True
