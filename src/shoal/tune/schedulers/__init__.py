"""What decides, while trials run, which of them go on."""

from __future__ import annotations

from shoal._core.trials import TrialScheduler
from shoal.tune.schedulers.asha import ASHAScheduler, AsyncHyperBandScheduler
from shoal.tune.schedulers.fifo import FIFOScheduler
from shoal.tune.schedulers.median import MedianStoppingRule
from shoal.tune.schedulers.pbt import PopulationBasedTraining

__all__ = [
    "ASHAScheduler",
    "AsyncHyperBandScheduler",
    "FIFOScheduler",
    "MedianStoppingRule",
    "PopulationBasedTraining",
    "TrialScheduler",
]
