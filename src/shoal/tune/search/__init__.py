"""What suggests configurations."""

from __future__ import annotations

from shoal._core.trials import Searcher
from shoal.tune.search.basic_variant import BasicVariantGenerator
from shoal.tune.search.limits import ConcurrencyLimiter, Repeater

__all__ = ["BasicVariantGenerator", "ConcurrencyLimiter", "Repeater", "Searcher"]
