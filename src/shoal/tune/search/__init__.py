"""What suggests configurations."""

from __future__ import annotations

import importlib
from typing import Any

from shoal._core.trials import Searcher
from shoal.tune.search.basic_variant import BasicVariantGenerator
from shoal.tune.search.limits import ConcurrencyLimiter, Repeater

__all__ = ["BasicVariantGenerator", "ConcurrencyLimiter", "Repeater", "Searcher"]
_LIBRARIES = frozenset({"ax", "bayesopt", "hyperopt", "nevergrad", "optuna"})


def __getattr__(name: str) -> Any:
    if name in _LIBRARIES:
        return importlib.import_module(f"shoal.tune.search.{name}")
    raise AttributeError(f"module 'shoal.tune.search' has no attribute {name!r}")
