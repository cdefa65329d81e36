"""Training one function on many workers: trainers, configurations, and what the function can ask and say."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal._core.errors import ControllerError, TrainingFailedError, WorkerGroupError
    from shoal.train import collective as collective
    from shoal.train import torch as torch
    from shoal.train.checkpoint import Checkpoint
    from shoal.train.config import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
    from shoal.train.context import PreemptionInfo, TrainContext, get_checkpoint, get_context, get_preemption_info
    from shoal.train.data.access import TRAIN_DATASET_KEY, get_dataset_shard
    from shoal.train.data.config import DataConfig
    from shoal.train.data.shard import DataShard
    from shoal.train.reporting import (
        CheckpointConsistencyMode,
        CheckpointUploadMode,
        ReportedCheckpoint,
        ReportedCheckpointStatus,
        checkpoint_dir,
        get_all_reported_checkpoints,
        report,
    )
    from shoal.train.result import Result
    from shoal.train.trainer import DataParallelTrainer
    from shoal.train.validation import ValidationConfig, ValidationFn
    from shoal.train.validation_task import ValidationTaskConfig

__all__ = [
    "TRAIN_DATASET_KEY",
    "Checkpoint",
    "CheckpointConfig",
    "CheckpointConsistencyMode",
    "CheckpointUploadMode",
    "ControllerError",
    "DataConfig",
    "DataParallelTrainer",
    "DataShard",
    "FailureConfig",
    "PreemptionInfo",
    "ReportedCheckpoint",
    "ReportedCheckpointStatus",
    "Result",
    "RunConfig",
    "ScalingConfig",
    "TrainContext",
    "TrainingFailedError",
    "ValidationConfig",
    "ValidationFn",
    "ValidationTaskConfig",
    "WorkerGroupError",
    "checkpoint_dir",
    "collective",
    "get_all_reported_checkpoints",
    "get_checkpoint",
    "get_context",
    "get_dataset_shard",
    "get_preemption_info",
    "report",
    "torch",
]

# Resolved at first use, so that `from shoal import train` costs nothing and needs no framework.
_ORIGINS = {
    "Checkpoint": "shoal.train.checkpoint",
    "CheckpointConfig": "shoal.train.config",
    "CheckpointConsistencyMode": "shoal.train.reporting",
    "CheckpointUploadMode": "shoal.train.reporting",
    "ControllerError": "shoal._core.errors",
    "DataConfig": "shoal.train.data.config",
    "DataShard": "shoal.train.data.shard",
    "TRAIN_DATASET_KEY": "shoal.train.data.access",
    "get_dataset_shard": "shoal.train.data.access",
    "DataParallelTrainer": "shoal.train.trainer",
    "FailureConfig": "shoal.train.config",
    "PreemptionInfo": "shoal.train.context",
    "ReportedCheckpoint": "shoal.train.reporting",
    "ReportedCheckpointStatus": "shoal.train.reporting",
    "Result": "shoal.train.result",
    "RunConfig": "shoal.train.config",
    "ScalingConfig": "shoal.train.config",
    "TrainContext": "shoal.train.context",
    "TrainingFailedError": "shoal._core.errors",
    "ValidationConfig": "shoal.train.validation",
    "ValidationFn": "shoal.train.validation",
    "ValidationTaskConfig": "shoal.train.validation_task",
    "WorkerGroupError": "shoal._core.errors",
    "checkpoint_dir": "shoal.train.reporting",
    "get_all_reported_checkpoints": "shoal.train.reporting",
    "get_checkpoint": "shoal.train.context",
    "get_context": "shoal.train.context",
    "get_preemption_info": "shoal.train.context",
    "report": "shoal.train.reporting",
}
_MODULES = frozenset({"collective", "torch"})


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"shoal.train.{name}")
    if name in _ORIGINS:
        value = getattr(importlib.import_module(_ORIGINS[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'shoal.train' has no attribute {name!r}; it has: {', '.join(__all__)}")


def __dir__() -> list[str]:
    return __all__
