"""Lightning's Trainer with the strategy, the plug-in and the callback of ray.train.lightning."""

import lightning.pytorch as pl
import torch
from ray.train import RunConfig, ScalingConfig
from ray.train.lightning import RayDDPStrategy, RayLightningEnvironment, RayTrainReportCallback, prepare_trainer
from ray.train.torch import TorchTrainer
from torch.utils.data import DataLoader, TensorDataset


class Net(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, index):
        loss = torch.nn.functional.mse_loss(self.layer(batch[0]), batch[1])
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def train_func():
    inputs = torch.randn(64, 4)
    trainer = pl.Trainer(
        max_epochs=2,
        devices="auto",
        accelerator="auto",
        strategy=RayDDPStrategy(),
        plugins=[RayLightningEnvironment()],
        callbacks=[RayTrainReportCallback()],
        enable_checkpointing=False,
        enable_progress_bar=False,
        logger=False,
    )
    trainer = prepare_trainer(trainer)
    trainer.fit(Net(), DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=16))


result = TorchTrainer(train_func, scaling_config=ScalingConfig(num_workers=2), run_config=RunConfig(name="lit")).fit()
with result.checkpoint.as_directory() as directory:
    print("done", result.metrics["epoch"], directory)
