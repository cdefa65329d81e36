"""HuggingFace: the trainer for functions that make a ``transformers.Trainer``."""

from shoal.train.huggingface.trainer import TransformersConfig, TransformersTrainer

__all__ = ["TransformersConfig", "TransformersTrainer"]
