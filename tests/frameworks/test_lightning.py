"""PyTorch Lightning: a module trained by two workers, killed and gone on with; and mistakes in its trainer."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from shoal import train
from shoal.errors import TrainingFailedError
from shoal.train import FailureConfig, RunConfig, ScalingConfig
from shoal.train.torch import TorchTrainer


def script(config: dict[str, Any]) -> None:
    import logging

    import torch
    from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything

    from shoal.train.lightning import DDPStrategy, LightningEnvironment, ReportCallback, prepare_trainer

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    seed_everything(1, verbose=False)

    class Line(LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def training_step(self, batch, number):
            features, targets = batch
            loss = torch.nn.functional.mse_loss(self.layer(features), targets)
            self.log("loss", loss, sync_dist=True, on_step=False, on_epoch=True)
            return loss

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.2)

    class DieOnce(Callback):
        def on_train_batch_start(self, trainer, module, batch, number):
            dies, rank = config.get("dies"), train.get_context().get_world_rank()
            if dies and trainer.current_epoch == 3 and rank == 1 and not os.path.exists(dies):
                Path(dies).touch()
                os._exit(3)

    inputs = torch.linspace(-1, 1, 64).unsqueeze(1)
    rows = torch.utils.data.TensorDataset(inputs, 3 * inputs + 1)
    strategies: dict[str, Any] = {"ours": DDPStrategy(), "theirs": "ddp", "single": "auto"}
    trainer = Trainer(
        max_epochs=8,
        accelerator="cpu",
        devices=1 if config.get("strategy") == "single" else "auto",
        strategy=strategies[config.get("strategy", "ours")],
        plugins=[LightningEnvironment()] if config.get("environment", True) else None,
        callbacks=[ReportCallback(), DieOnce()],
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        logger=False,
    )
    prepare_trainer(trainer)
    checkpoint = train.get_checkpoint()
    path = str(checkpoint.path / "checkpoint.ckpt") if checkpoint else None
    trainer.fit(Line(), torch.utils.data.DataLoader(rows, batch_size=8, shuffle=True), ckpt_path=path)


def fit(workers: int = 2, config: dict[str, Any] | None = None, **run: Any) -> train.Result:
    return TorchTrainer(
        script,
        train_loop_config=config or {},
        scaling_config=ScalingConfig(num_workers=workers),
        run_config=RunConfig(verbose=0, log_to_driver=None, **run),
    ).fit()


@pytest.mark.parametrize("workers", [1, 2])
def test_a_module_learns_and_each_epoch_is_reported_with_its_checkpoint(workers: int):
    result = fit(workers)
    frame = result.metrics_dataframe
    assert list(frame["epoch"]) == list(range(8))
    assert frame["step"].iloc[-1] == 8 * 64 // (8 * workers)
    assert frame["loss"].iloc[-1] < 0.02
    with result.checkpoint.as_directory() as directory:
        assert "checkpoint.ckpt" in os.listdir(directory)


def test_a_killed_worker_goes_on_from_lightning_s_checkpoint(tmp_path: Path):
    undisturbed = fit()
    result = fit(config={"dies": str(tmp_path / "mark")}, failure_config=FailureConfig(max_failures=1))
    assert [attempt.checkpoint for attempt in result.attempts] == [0, 3]
    assert list(result.metrics_dataframe["epoch"]) == list(range(8))
    last = result.metrics_dataframe["loss"].iloc[-1]
    assert last == pytest.approx(undisturbed.metrics_dataframe["loss"].iloc[-1], abs=0.01)


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        ({"strategy": "single", "environment": False}, "each of the 2 workers would train alone"),
        ({"strategy": "theirs"}, "Lightning's own DDPStrategy, which chooses devices by itself"),
        ({"environment": False}, "lacks the LightningEnvironment"),
    ],
)
def test_a_trainer_that_would_not_use_the_workers_is_refused(config: dict[str, Any], complaint: str):
    with pytest.raises(TrainingFailedError, match=complaint):
        fit(config=config)
