"""The trainer for HuggingFace Transformers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from shoal._core.contracts import WorkerSide
from shoal._runtime.requirements import require
from shoal.train.torch.framework import TorchConfig
from shoal.train.torch.trainer import TorchTrainer
from shoal.train.trainer import TrainFunction, checked


@dataclass(frozen=True)
class TransformersConfig(TorchConfig):
    """How the process group is made, and that every ``transformers.Trainer`` of the function reports by itself.

    The parameters are those of :class:`~shoal.train.torch.TorchConfig`.
    """

    preload: ClassVar[tuple[str, ...]] = (
        *TorchConfig.preload,
        "accelerate",
        "transformers.trainer",
        "transformers.models.auto",
        "shoal.train.huggingface.transformers",
    )

    def start(self, worker: WorkerSide) -> None:
        """Make the process group, and have trainers of Transformers report."""
        super().start(worker)
        from shoal.train.huggingface.transformers import prepare_every_trainer

        prepare_every_trainer()


class TransformersTrainer(TorchTrainer):
    """Runs a function that makes a plain ``transformers.Trainer`` on every worker.

    What the trainer logs, evaluates and saves is reported by itself, with the saved directory as the checkpoint. After
    a failure its ``train()`` goes on from the newest checkpoint. Subclasses of ``transformers.Trainer`` (TRL, PEFT, and
    the user's own) are trainers as well.

    Parameters
    ----------
    train_loop_per_worker : callable
        A function without arguments, or with one: the configuration, a dict.
    torch_config : TransformersConfig, optional
        How the process group is made.
    **settings
        As for :class:`~shoal.train.torch.TorchTrainer`.

    Examples
    --------
    >>> from shoal.train.huggingface import TransformersTrainer
    >>> def train_func(config):
    ...     from transformers import Trainer, TrainingArguments
    ...     trainer = Trainer(model=..., args=TrainingArguments("output"), train_dataset=...)
    ...     trainer.train()
    >>> trainer = TransformersTrainer(train_func, train_loop_config={"lr": 2e-5})
    """

    def __init__(
        self,
        train_loop_per_worker: TrainFunction,
        *,
        torch_config: TransformersConfig | None = None,
        **settings: Any,
    ):
        require("transformers", extra="transformers", tested="4.50", trainer="TransformersTrainer")
        require("accelerate", extra="transformers", tested="1.2", trainer="TransformersTrainer")
        framework = checked("torch_config", torch_config, TransformersConfig) or TransformersConfig()
        super().__init__(train_loop_per_worker, torch_config=framework, **settings)
