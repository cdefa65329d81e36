"""Train a small vision transformer of HuggingFace on handwritten digits with two workers.

The function makes a plain ``transformers.Trainer``. What it logs, evaluates and saves is reported by itself.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from shoal import train
from shoal.train import FailureConfig, RunConfig, ScalingConfig
from shoal.train.huggingface import TransformersTrainer


def load_data() -> tuple[list[dict], list[dict]]:
    images, labels = load_digits(return_X_y=True)
    pixels = torch.as_tensor(images / 8.0 - 1.0).float().reshape(-1, 1, 8, 8)
    rows = [{"pixel_values": image, "labels": int(label)} for image, label in zip(pixels, labels, strict=True)]
    return tuple(train_test_split(rows, test_size=0.25, random_state=0, stratify=labels))


def train_func(config: dict) -> None:
    from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification, set_seed
    from transformers.utils import logging

    logging.disable_progress_bar()
    set_seed(0)
    train_data, test_data = load_data()
    shape = ViTConfig(
        image_size=8,
        patch_size=2,
        num_channels=1,
        num_labels=10,
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=96,
    )
    trainer = Trainer(
        model=ViTForImageClassification(shape),
        args=TrainingArguments(
            output_dir=str(
                Path(tempfile.gettempdir(), "transformers_digits", train.get_context().get_experiment_name())
            ),
            num_train_epochs=config["epochs"],
            per_device_train_batch_size=32,
            learning_rate=3e-3,
            warmup_steps=20,
            eval_strategy="epoch",
            save_strategy="epoch",
            logging_strategy="epoch",
            report_to=[],
            disable_tqdm=True,
        ),
        train_dataset=train_data,
        eval_dataset=test_data,
        compute_metrics=lambda found: {"accuracy": float(np.mean(found.predictions.argmax(-1) == found.label_ids))},
    )
    checkpoint = train.get_checkpoint()
    trainer.train(resume_from_checkpoint=str(checkpoint.path) if checkpoint else None)


def make_trainer(function=train_func, epochs: int = 15, **run) -> TransformersTrainer:
    return TransformersTrainer(
        function,
        train_loop_config={"epochs": epochs},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(failure_config=FailureConfig(max_failures=1), **run),
    )


if __name__ == "__main__":
    frame = make_trainer().fit().metrics_dataframe
    accuracy = frame["eval_accuracy"].dropna().iloc[-1]
    print(f"test accuracy: {accuracy:.3f}")
    sys.exit(bool(accuracy < 0.93))
