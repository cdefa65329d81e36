"""PyTorch Lightning inside a TorchTrainer: its strategies on the worker's device, its checkpoints as shoal's."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any, TypeVar

import torch
from lightning.fabric.plugins.environments.lightning import LightningEnvironment as _PlainEnvironment
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.strategies import DDPStrategy as _DDPStrategy
from lightning.pytorch.strategies import DeepSpeedStrategy as _DeepSpeedStrategy
from lightning.pytorch.strategies import FSDPStrategy as _FSDPStrategy
from lightning.pytorch.strategies import ParallelStrategy, SingleDeviceStrategy

from shoal.train import collective
from shoal.train.checkpoint import Checkpoint
from shoal.train.context import get_context
from shoal.train.reporting import CheckpointUploadMode, report
from shoal.train.torch.device import get_device

__all__ = [
    "DDPStrategy",
    "DeepSpeedStrategy",
    "FSDPStrategy",
    "LightningEnvironment",
    "ReportCallback",
    "prepare_trainer",
]

FILE = "checkpoint.ckpt"
T = TypeVar("T", bound=Trainer)


class _OnOurDevice:
    """A strategy whose device is the worker's, and whose samplers share out by the worker's rank."""

    @property
    def root_device(self) -> torch.device:
        """The device of this worker."""
        return get_device()

    @root_device.setter
    def root_device(self, device: torch.device) -> None:
        """Lightning chooses none here."""

    @property
    def distributed_sampler_kwargs(self) -> dict[str, Any]:
        """By what Lightning's samplers share data out."""
        context = get_context()
        return {"num_replicas": context.get_world_size(), "rank": context.get_world_rank()}


class DDPStrategy(_OnOurDevice, _DDPStrategy):
    """Lightning's DDP strategy; the parameters are the same."""


class FSDPStrategy(_OnOurDevice, _FSDPStrategy):
    """Lightning's FSDP strategy; the parameters are the same. Needs GPUs."""


class DeepSpeedStrategy(_OnOurDevice, _DeepSpeedStrategy):
    """Lightning's DeepSpeed strategy; the parameters are the same. Needs GPUs, and the package deepspeed."""


class LightningEnvironment(_PlainEnvironment):
    """Where Lightning reads which process this is: shoal has started it, and knows its ranks."""

    @property
    def creates_processes_externally(self) -> bool:
        """Whether somebody else starts the processes, which is so."""
        return True

    def world_size(self) -> int:
        """Return the number of workers."""
        return get_context().get_world_size()

    def global_rank(self) -> int:
        """Return the rank of this worker."""
        return get_context().get_world_rank()

    def local_rank(self) -> int:
        """Return the rank of this worker among those of its machine."""
        return get_context().get_local_rank()

    def node_rank(self) -> int:
        """Return the rank of this machine."""
        return get_context().get_node_rank()

    def set_world_size(self, size: int) -> None:
        """Nothing is set: the workers are there already."""

    def set_global_rank(self, rank: int) -> None:
        """Nothing is set: the rank is known already."""


class ReportCallback(Callback):
    """Reports the metrics of each epoch, with Lightning's checkpoint in ``checkpoint.ckpt``.

    Parameters
    ----------
    checkpoint_upload_mode : CheckpointUploadMode
        As for :func:`~shoal.train.report`.
    validation : bool
        Whether the checkpoint is to be scored by the trainer's ``validation_config``.

    Examples
    --------
    >>> from shoal import train
    >>> def train_func():
    ...     from lightning.pytorch import Trainer
    ...     from shoal.train.lightning import DDPStrategy, LightningEnvironment, ReportCallback, prepare_trainer
    ...     trainer = prepare_trainer(
    ...         Trainer(strategy=DDPStrategy(), plugins=[LightningEnvironment()], callbacks=[ReportCallback()])
    ...     )
    ...     checkpoint = train.get_checkpoint()
    ...     path = checkpoint.path / "checkpoint.ckpt" if checkpoint else None
    ...     trainer.fit(..., ckpt_path=path)
    """

    def __init__(
        self,
        checkpoint_upload_mode: CheckpointUploadMode = CheckpointUploadMode.SYNC,
        validation: bool = False,
    ):
        super().__init__()
        self._mode, self._validation = checkpoint_upload_mode, validation

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Report an epoch."""
        metrics = {name: value.item() for name, value in trainer.callback_metrics.items() if value.numel() == 1}
        metrics.update(epoch=trainer.current_epoch, step=trainer.global_step)
        place = Path(collective.broadcast_from_rank_zero(tempfile.mkdtemp(dir=get_context().get_trial_dir())))
        place.mkdir(parents=True, exist_ok=True)  # on other machines
        trainer.save_checkpoint(str(place / FILE))  # all ranks take part, each with what is its own
        at_once = self._mode is CheckpointUploadMode.SYNC
        report(
            metrics,
            checkpoint=Checkpoint(place),
            checkpoint_upload_mode=self._mode,
            delete_local_checkpoint_after_upload=None if at_once else True,
            validation=self._validation,
        )
        collective.barrier()
        if at_once:
            shutil.rmtree(place, ignore_errors=True)


RayDDPStrategy, RayFSDPStrategy, RayDeepSpeedStrategy = DDPStrategy, FSDPStrategy, DeepSpeedStrategy
RayLightningEnvironment, RayTrainReportCallback = LightningEnvironment, ReportCallback


def prepare_trainer(trainer: T) -> T:
    """Return the trainer, if it trains on the workers that there are.

    Raises
    ------
    ValueError
        If its strategy or its environment would start processes of its own, or knows nothing of the others.
    """
    strategy = trainer.strategy
    if isinstance(strategy, SingleDeviceStrategy) and get_context().get_world_size() > 1:
        raise ValueError(
            f"Trainer(strategy=...) is {type(strategy).__name__}, so that each of the "
            f"{get_context().get_world_size()} workers would train alone: give strategy=DDPStrategy() of "
            "shoal.train.lightning"
        )
    if isinstance(strategy, ParallelStrategy) and not isinstance(strategy, _OnOurDevice):
        raise ValueError(
            f"Trainer(strategy=...) is Lightning's own {type(strategy).__name__}, which chooses devices by itself: "
            "give the one of shoal.train.lightning"
        )
    environment = getattr(strategy, "cluster_environment", None)
    if isinstance(strategy, ParallelStrategy) and not isinstance(environment, LightningEnvironment):
        raise ValueError("Trainer(plugins=...) lacks the LightningEnvironment() of shoal.train.lightning")
    return trainer
