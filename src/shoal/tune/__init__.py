"""Searching hyperparameters on the same workers that train."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal._core.trial_callback import TrialCallback as Callback
    from shoal.train.checkpoint import Checkpoint
    from shoal.train.config import CheckpointConfig, FailureConfig, RunConfig
    from shoal.train.context import TrainContext as TuneContext
    from shoal.train.context import get_checkpoint, get_context
    from shoal.train.reporting import report
    from shoal.train.result import Result
    from shoal.tune import logger as logger
    from shoal.tune import schedulers as schedulers
    from shoal.tune import search as search
    from shoal.tune import stopper as stopper
    from shoal.tune.config import TuneConfig
    from shoal.tune.parameters import with_parameters
    from shoal.tune.progress_reporter import CLIReporter, JupyterNotebookReporter, ProgressReporter
    from shoal.tune.registry import create_scheduler, create_searcher, register_trainable
    from shoal.tune.resources import PlacementGroupFactory, with_resources
    from shoal.tune.result_grid import ResultGrid, TuneError
    from shoal.tune.sample import (
        choice,
        grid_search,
        lograndint,
        loguniform,
        qlograndint,
        qloguniform,
        qrandint,
        qrandn,
        quniform,
        randint,
        randn,
        sample_from,
        uniform,
    )
    from shoal.tune.short import ExperimentAnalysis, run
    from shoal.tune.stopper import Stopper
    from shoal.tune.trainable import Trainable
    from shoal.tune.tuner import Tuner

__all__ = [
    "CLIReporter",
    "Callback",
    "Checkpoint",
    "CheckpointConfig",
    "ExperimentAnalysis",
    "FailureConfig",
    "JupyterNotebookReporter",
    "PlacementGroupFactory",
    "ProgressReporter",
    "Result",
    "ResultGrid",
    "RunConfig",
    "Stopper",
    "Trainable",
    "TuneConfig",
    "TuneContext",
    "TuneError",
    "Tuner",
    "choice",
    "create_scheduler",
    "create_searcher",
    "get_checkpoint",
    "get_context",
    "grid_search",
    "logger",
    "lograndint",
    "loguniform",
    "qlograndint",
    "qloguniform",
    "qrandint",
    "qrandn",
    "quniform",
    "randint",
    "randn",
    "register_trainable",
    "report",
    "run",
    "sample_from",
    "schedulers",
    "search",
    "stopper",
    "uniform",
    "with_parameters",
    "with_resources",
]

# Resolved at first use, so that a worker loads no more than it needs.
_ORIGINS = {
    "CLIReporter": "shoal.tune.progress_reporter",
    "JupyterNotebookReporter": "shoal.tune.progress_reporter",
    "ProgressReporter": "shoal.tune.progress_reporter",
    "Callback": "shoal._core.trial_callback:TrialCallback",
    "Checkpoint": "shoal.train.checkpoint",
    "CheckpointConfig": "shoal.train.config",
    "ExperimentAnalysis": "shoal.tune.short",
    "FailureConfig": "shoal.train.config",
    "PlacementGroupFactory": "shoal.tune.resources",
    "Result": "shoal.train.result",
    "ResultGrid": "shoal.tune.result_grid",
    "RunConfig": "shoal.train.config",
    "Stopper": "shoal.tune.stopper",
    "Trainable": "shoal.tune.trainable",
    "TuneConfig": "shoal.tune.config",
    "TuneContext": "shoal.train.context:TrainContext",
    "TuneError": "shoal.tune.result_grid",
    "Tuner": "shoal.tune.tuner",
    "create_scheduler": "shoal.tune.registry",
    "create_searcher": "shoal.tune.registry",
    "get_checkpoint": "shoal.train.context",
    "get_context": "shoal.train.context",
    "register_trainable": "shoal.tune.registry",
    "report": "shoal.train.reporting",
    "run": "shoal.tune.short",
    **dict.fromkeys(
        (
            "choice",
            "grid_search",
            "lograndint",
            "loguniform",
            "qlograndint",
            "qloguniform",
            "qrandint",
            "qrandn",
            "quniform",
            "randint",
            "randn",
            "sample_from",
            "uniform",
        ),
        "shoal.tune.sample",
    ),
    "with_parameters": "shoal.tune.parameters",
    "with_resources": "shoal.tune.resources",
}
_MODULES = frozenset({"logger", "schedulers", "search", "stopper"})


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"shoal.tune.{name}")
    if name in _ORIGINS:
        module, _, original = _ORIGINS[name].partition(":")
        value = getattr(importlib.import_module(module), original or name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'shoal.tune' has no attribute {name!r}; it has: {', '.join(__all__)}")


def __dir__() -> list[str]:
    return __all__
