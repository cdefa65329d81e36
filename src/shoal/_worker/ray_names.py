"""Imports of ``ray.train``, ``ray.tune`` and ``ray.air`` get shoal's modules; what has no counterpart is said."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

VARIABLE = "SHOAL_AS_RAY"  # by which the workers of a script know that they are to import likewise
GUIDE = "docs/migrate-from-ray.md has what to write instead"
SHARED = frozenset({"air", "train", "tune"})
ELSEWHERE = {
    "ray.air.config": "shoal.air",
    "ray.air.result": "shoal.air",
    "ray.train.context": "shoal.train",
    "ray.train.trainer": "shoal.train",
    "ray.train.base_trainer": "shoal.train",
    "ray.train.data_parallel_trainer": "shoal.train",
    "ray.tune.experiment": "shoal.tune",
    "ray.tune.result": "shoal.tune",
    "ray.tune.trainable": "shoal.tune",
    "ray.tune.tuner": "shoal.tune",
    "ray.tune.tune_config": "shoal.tune",
    "ray.tune.error": "shoal.tune",
    "ray.tune.callback": "shoal.tune",
    "ray.tune.search.sample": "shoal.tune",
    "ray.tune.integration.pytorch_lightning": "shoal.train.lightning",
}
REASONS = {
    "data": "give torch data sets, arrays, files or iterables as datasets={...} of a trainer instead",
    "remote": "shoal trains and searches, and has no tasks or actors; other work is a function or a process of yours",
    "get": "there are no object references in shoal; what a function needs, it closes over or takes in its config",
    "put": "there are no object references in shoal; tune.with_parameters passes large objects once",
    "wait": "there are no object references in shoal",
    "serve": "shoal does not serve models; it leaves checkpoints that any server loads",
    "rllib": "shoal has no reinforcement learning; its trainers run the training function of any library",
}


class RayModule(ModuleType):
    """A module of Ray's name whose contents are those of a module of shoal."""

    def __init__(self, name: str, target: ModuleType):
        super().__init__(name, target.__doc__)
        self.__path__: list[str] = []
        self._target = target
        if hasattr(target, "__all__"):
            self.__all__ = target.__all__

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        try:
            return getattr(self._target, name)
        except AttributeError:
            pass
        try:
            return importlib.import_module(f"{self.__name__}.{name}")
        except ModuleNotFoundError:
            raise ImportError(without(f"{self.__name__}.{name}"), name=self.__name__) from None

    def __reduce__(self) -> tuple[Any, ...]:
        return importlib.import_module, (self.__name__,)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *dir(self._target)})


class RayFinder(MetaPathFinder, Loader):
    """Finds modules of Ray's names, before an installed Ray is found."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] != "ray":
            return None
        if counterpart(fullname) is None:
            raise ModuleNotFoundError(without(fullname), name=fullname)
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        place = counterpart(spec.name)
        assert place is not None
        return RayModule(spec.name, importlib.import_module(place))

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing more: what is in it was executed as shoal's."""


def counterpart(name: str) -> str | None:
    """Return the name of shoal's module for one of Ray's; ``None`` if there is none."""
    if name == "ray":
        return "shoal"
    if name in ELSEWHERE:
        return ELSEWHERE[name]
    parts = name.split(".")[1:]
    if parts[0] not in SHARED or any(part.startswith("_") for part in parts):
        return None
    place = ".".join(["shoal", *parts])
    try:
        return place if importlib.util.find_spec(place) else None
    except ModuleNotFoundError:  # what it lies in is no package
        return None


def without(name: str) -> str:
    """Say that something of Ray has no counterpart, and what to do."""
    part = name.split(".")[1]
    if part in REASONS:
        return f"{name} has no counterpart in shoal: {REASONS[part]}"
    inside, _, last = name.rpartition(".")
    place = counterpart(inside)
    names = [one for one in dir(importlib.import_module(place)) if not one.startswith("_")] if place else []
    near = difflib.get_close_matches(last, names, n=3, cutoff=0.75)
    meant = f"; did you mean {' or '.join(f'{inside}.{one}' for one in near)}?" if near else ""
    return f"{name} has no counterpart in shoal{meant or f'; {GUIDE}'}"


def install() -> None:
    """Have this process, and the workers that it starts, import Ray's names from shoal.

    Raises
    ------
    ImportError
        If Ray itself was imported before.
    """
    os.environ[VARIABLE] = "1"
    if installed():
        return
    if "ray" in sys.modules:
        raise ImportError("ray was imported already: call shoal.as_ray.install() before")
    sys.meta_path.insert(0, RayFinder())


def installed() -> bool:
    """Whether imports of Ray get shoal in this process."""
    return any(isinstance(finder, RayFinder) for finder in sys.meta_path)
