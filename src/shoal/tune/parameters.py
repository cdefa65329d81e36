"""Objects that all trials of a search share: stored once, loaded once in each process that needs them."""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle

_loaded: dict[str, Any] = {}


class Shared:
    """An object in a file of its own, which travels by its place.

    It is written when this is made, and read where the value is asked for. The file is removed with the last one that
    knows of it in the process that made it.
    """

    def __init__(self, value: Any):
        import hashlib  # not in workers, whose fork it would make slower

        data = cloudpickle.dumps(value)
        self._key = hashlib.sha256(data).hexdigest()
        directory = Path(tempfile.mkdtemp(prefix="shoal-parameters-"))
        self._path = directory / "value.pkl"
        self._path.write_bytes(data)
        weakref.finalize(self, _remove, str(self._path), os.getpid())

    @property
    def value(self) -> Any:
        """The object, the same one each time in one process."""
        if self._key not in _loaded:
            _loaded.clear()  # one that is not used any more does not stay in memory
            _loaded[self._key] = cloudpickle.loads(Path(self._path).read_bytes())
        return _loaded[self._key]

    def __getstate__(self) -> dict[str, Any]:
        return {"_key": self._key, "_path": self._path}


def _remove(path: str, owner: int) -> None:
    if os.getpid() == owner:
        Path(path).unlink(missing_ok=True)
        Path(path).parent.rmdir()


class WithParameters:
    """A function, or what makes an object, with shared arguments."""

    def __init__(self, function: Callable[..., Any], shared: Shared):
        self.function = function
        self.shared = shared
        self.__name__ = getattr(function, "__name__", type(function).__name__)
        self.__qualname__ = getattr(function, "__qualname__", self.__name__)

    def __call__(self, config: dict[str, Any]) -> Any:
        return self.function(config, **self.shared.value)


def with_parameters(trainable: Any, **kwargs: Any) -> Any:
    """Return a trainable that gets these objects as arguments: data sets, models, whatever is large.

    They are pickled once, not once a trial. A function gets them as keyword arguments after the configuration, a
    :class:`~shoal.tune.Trainable` as keyword arguments of its ``setup``.

    Examples
    --------
    >>> from shoal import tune
    >>> def objective(config, data):
    ...     return {"loss": abs(config["x"] - sum(data) / len(data))}
    >>> trainable = tune.with_parameters(objective, data=[0.25, 0.75])
    >>> trainable({"x": 0.5})
    {'loss': 0.0}
    """
    if not callable(trainable):
        raise TypeError(f"trainable={trainable!r}: give a function or a subclass of tune.Trainable")
    shared = Shared(kwargs)
    if isinstance(trainable, type):

        def setup(self: Any, config: dict[str, Any]) -> None:
            trainable.setup(self, config, **shared.value)  # type: ignore[attr-defined]

        return type(trainable.__name__, (trainable,), {"setup": setup, "__module__": trainable.__module__})
    together = WithParameters(trainable, shared)
    resources = getattr(trainable, "_shoal_resources", None)
    if resources is not None:
        together._shoal_resources = resources  # type: ignore[attr-defined]
    return together
