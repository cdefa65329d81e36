"""What decides, while trials run, which of them go on."""

from __future__ import annotations

from shoal._core.trials import TrialScheduler
from shoal.tune.schedulers.asha import ASHAScheduler, AsyncHyperBandScheduler
from shoal.tune.schedulers.fifo import FIFOScheduler
from shoal.tune.schedulers.hyperband import HyperBandScheduler
from shoal.tune.schedulers.median import MedianStoppingRule
from shoal.tune.schedulers.pb2 import PB2
from shoal.tune.schedulers.pbt import PopulationBasedTraining
from shoal.tune.schedulers.pbt_replay import PopulationBasedTrainingReplay
from shoal.tune.schedulers.promotion import ASHAPromotionScheduler
from shoal.tune.schedulers.resource_changing import ResourceChangingScheduler

__all__ = [
    "PB2",
    "ASHAPromotionScheduler",
    "ASHAScheduler",
    "AsyncHyperBandScheduler",
    "FIFOScheduler",
    "HyperBandScheduler",
    "MedianStoppingRule",
    "PopulationBasedTraining",
    "PopulationBasedTrainingReplay",
    "ResourceChangingScheduler",
    "TrialScheduler",
]
