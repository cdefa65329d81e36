"""A transformers.Trainer in a TorchTrainer, with the callback of ray.train.huggingface.transformers."""

import ray.train.huggingface.transformers
import torch
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, index):
        return {
            "input_ids": torch.arange(8) % 20,
            "attention_mask": torch.ones(8).long(),
            "labels": torch.tensor(index % 2),
        }


def train_func():
    model = BertForSequenceClassification(
        BertConfig(vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8)
    )
    arguments = TrainingArguments(
        output_dir="out",
        num_train_epochs=1,
        per_device_train_batch_size=8,
        logging_steps=1,
        save_strategy="epoch",
        report_to="none",
        use_cpu=True,
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=Rows())
    trainer.add_callback(ray.train.huggingface.transformers.RayTrainReportCallback())
    trainer = ray.train.huggingface.transformers.prepare_trainer(trainer)
    trainer.train()


result = TorchTrainer(train_func, scaling_config=ScalingConfig(num_workers=2)).fit()
assert result.checkpoint is not None
print("done", result.metrics["step"])
