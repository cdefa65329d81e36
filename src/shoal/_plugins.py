"""The one table of plug-ins: kind and name to ``module:Class``, as texts, so that ``import shoal`` stays light."""

from __future__ import annotations

import importlib
from typing import Any

PLUGINS: dict[str, dict[str, str]] = {
    "engine": {
        "local": "shoal.engines.local:LocalEngine",
        "inline": "shoal.engines.inline:InlineEngine",
        "ray": "shoal.engines.ray:RayEngine",
        "slurm": "shoal.engines.slurm:SlurmEngine",
        "launched": "shoal.engines.launched:LaunchedEngine",
    },
    "framework": {
        "plain": "shoal.train.plain:PlainFramework",
        "torch": "shoal.train.torch.framework:TorchConfig",
        "transformers": "shoal.train.huggingface.trainer:TransformersConfig",
        "tensorflow": "shoal.train.tensorflow.trainer:TensorflowConfig",
        "jax": "shoal.train.jax:JaxConfig",
        "xgboost": "shoal.train.xgboost:XGBoostConfig",
        "lightgbm": "shoal.train.lightgbm:LightGBMConfig",
    },
    "searcher": {
        "random": "shoal.tune.search.basic_variant:BasicVariantGenerator",
        "variant_generator": "shoal.tune.search.basic_variant:BasicVariantGenerator",
        "optuna": "shoal.tune.search.optuna:OptunaSearch",
        "hyperopt": "shoal.tune.search.hyperopt:HyperOptSearch",
        "ax": "shoal.tune.search.ax:AxSearch",
        "nevergrad": "shoal.tune.search.nevergrad:NevergradSearch",
        "bayesopt": "shoal.tune.search.bayesopt:BayesOptSearch",
    },
    "scheduler": {
        "fifo": "shoal.tune.schedulers.fifo:FIFOScheduler",
        "asha": "shoal.tune.schedulers.asha:AsyncHyperBandScheduler",
        "async_hyperband": "shoal.tune.schedulers.asha:AsyncHyperBandScheduler",
        "median_stopping_rule": "shoal.tune.schedulers.median:MedianStoppingRule",
        "asha_promotion": "shoal.tune.schedulers.promotion:ASHAPromotionScheduler",
        "hyperband": "shoal.tune.schedulers.hyperband:HyperBandScheduler",
        "pbt_replay": "shoal.tune.schedulers.pbt_replay:PopulationBasedTrainingReplay",
        "resource_changing": "shoal.tune.schedulers.resource_changing:ResourceChangingScheduler",
        "pbt": "shoal.tune.schedulers.pbt:PopulationBasedTraining",
        "pb2": "shoal.tune.schedulers.pb2:PB2",
    },
}


def load(kind: str, name: str) -> Any:
    """Return the class of a plug-in.

    Raises
    ------
    ValueError
        If there is none of this name; the message lists those that are.
    """
    try:
        target = PLUGINS[kind][name]
    except KeyError:
        known = ", ".join(sorted(PLUGINS[kind]))
        raise ValueError(f"there is no {kind} named {name!r}; there are: {known}") from None
    module, _, attribute = target.partition(":")
    return getattr(importlib.import_module(module), attribute)
