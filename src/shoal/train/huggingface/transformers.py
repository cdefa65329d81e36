"""How a ``transformers.Trainer`` tells shoal what it logs and saves, and goes on from shoal's checkpoints."""

from __future__ import annotations

import functools
import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any, TypeVar

from transformers import Trainer, TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from shoal._worker import session as sessions
from shoal.train import collective
from shoal.train.checkpoint import Checkpoint
from shoal.train.context import get_checkpoint
from shoal.train.reporting import report

__all__ = ["RayTrainReportCallback", "ReportCallback", "prepare_trainer"]

STATE = "trainer_state.json"  # what makes a directory a checkpoint of Transformers
T = TypeVar("T", bound=Trainer)


class ReportCallback(TrainerCallback):
    """Reports what a ``transformers.Trainer`` logs, evaluates and saves: one report a step, with the checkpoint if any,
    and one that sums up the training.

    :class:`~shoal.train.huggingface.TransformersTrainer` adds it by itself; in a plain ``TorchTrainer`` give it as
    ``Trainer(callbacks=[ReportCallback()])``, or use :func:`prepare_trainer`.
    """

    def __init__(self) -> None:
        self._metrics: dict[str, Any] = {}
        self._training = False

    def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Wait with each report until all of its step is known."""
        self._training = True

    def on_step_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Report what the last step has left."""
        self._flush()

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **more: Any) -> None:
        """Take what is logged; evaluations are logged too."""
        self._metrics.update(logs or {}, step=state.global_step, epoch=state.epoch)
        if not self._training:
            self._flush()

    def on_save(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Report the directory that was saved, once every rank has written its files into it."""
        collective.barrier()
        directory = Path(args.output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"
        self._metrics.update(step=state.global_step, epoch=state.epoch)
        self._flush(Checkpoint(directory) if directory.exists() else None)

    def on_train_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Report what is left."""
        self._flush()
        self._training = False

    def _flush(self, checkpoint: Checkpoint | None = None) -> None:
        if self._metrics or checkpoint is not None:
            metrics, self._metrics = self._metrics, {}
            report(metrics, checkpoint=checkpoint)


RayTrainReportCallback = ReportCallback  # the name that scripts bring along


def prepare_trainer(trainer: T) -> T:
    """Return the trainer, which reports from now on. Once is enough, and twice is the same.

    Examples
    --------
    >>> from shoal.train.huggingface.transformers import prepare_trainer
    >>> def train_func(config):
    ...     from transformers import Trainer
    ...     trainer = prepare_trainer(Trainer(...))
    ...     trainer.train()
    """
    if not any(isinstance(callback, ReportCallback) for callback in trainer.callback_handler.callbacks):
        trainer.add_callback(ReportCallback())
    return trainer


def prepare_every_trainer() -> None:
    """Have every trainer that is made in this process from now on report, and go on from the run's checkpoint."""
    if getattr(Trainer, "_shoal", False):
        return
    make, go = Trainer.__init__, Trainer.train

    @functools.wraps(make)
    def made(self: Trainer, *arguments: Any, **more: Any) -> None:
        make(self, *arguments, **more)
        if sessions.active():
            prepare_trainer(self)

    @functools.wraps(go)
    def train(self: Trainer, resume_from_checkpoint: str | bool | None = None, *arguments: Any, **more: Any) -> Any:
        kept = get_checkpoint() if sessions.active() and not isinstance(resume_from_checkpoint, str) else None
        with kept.as_directory() if kept is not None else nullcontext() as directory:
            if directory is not None and os.path.exists(os.path.join(directory, STATE)):
                resume_from_checkpoint = str(directory)
            return go(self, resume_from_checkpoint, *arguments, **more)

    for name, value in ("__init__", made), ("train", train), ("_shoal", True):
        setattr(Trainer, name, value)
