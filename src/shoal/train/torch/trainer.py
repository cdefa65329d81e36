"""The trainer for PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from shoal.train.checkpoint import Checkpoint
from shoal.train.config import RunConfig, ScalingConfig
from shoal.train.torch.framework import TorchConfig
from shoal.train.trainer import DataParallelTrainer, TrainFunction, checked
from shoal.train.validation import ValidationConfig

if TYPE_CHECKING:
    from shoal.train.data.config import DataConfig


class TorchTrainer(DataParallelTrainer):
    """Runs one function on every worker of a group, with a torch process group around them.

    Parameters
    ----------
    train_loop_per_worker : callable
        A function without arguments, or with one: the configuration, a dict.
    train_loop_config : mapping, optional
        The configuration.
    torch_config : TorchConfig, optional
        How the process group is made: gloo on CPUs, NCCL on GPUs by default.
    scaling_config, run_config, datasets, dataset_config, validation_config, metadata, resume_from_checkpoint
        See :class:`~shoal.train.DataParallelTrainer`.

    Examples
    --------
    >>> import torch
    >>> from shoal import train
    >>> from shoal.train import RunConfig, ScalingConfig
    >>> def train_func(config):
    ...     model = train.torch.prepare_model(torch.nn.Linear(4, 1))
    ...     loss = model(torch.ones(8, 4)).sum()
    ...     loss.backward()
    ...     train.report({"loss": loss.item(), "workers": torch.distributed.get_world_size()})
    >>> trainer = TorchTrainer(
    ...     train_func, scaling_config=ScalingConfig(num_workers=2), run_config=RunConfig(verbose=0)
    ... )
    >>> trainer.fit().metrics["workers"]
    2
    """

    def __init__(
        self,
        train_loop_per_worker: TrainFunction,
        *,
        train_loop_config: Mapping[str, Any] | None = None,
        torch_config: TorchConfig | None = None,
        scaling_config: ScalingConfig | None = None,
        run_config: RunConfig | None = None,
        datasets: Mapping[str, Any] | None = None,
        dataset_config: DataConfig | None = None,
        validation_config: ValidationConfig | None = None,
        metadata: Mapping[str, Any] | None = None,
        resume_from_checkpoint: Checkpoint | None = None,
    ):
        super().__init__(
            train_loop_per_worker,
            train_loop_config=train_loop_config,
            framework=checked("torch_config", torch_config, TorchConfig) or TorchConfig(),
            scaling_config=scaling_config,
            run_config=run_config,
            datasets=datasets,
            dataset_config=dataset_config,
            validation_config=validation_config,
            metadata=metadata,
            resume_from_checkpoint=resume_from_checkpoint,
        )
