"""PyTorch: the trainer, and what prepares models, data loaders and optimizers for many workers."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal.train.torch.amp import accelerate, backward, prepare_optimizer
    from shoal.train.torch.device import get_device, get_devices
    from shoal.train.torch.framework import TorchConfig
    from shoal.train.torch.loader import prepare_data_loader
    from shoal.train.torch.model import prepare_model
    from shoal.train.torch.reproducibility import enable_reproducibility
    from shoal.train.torch.trainer import TorchTrainer

__all__ = [
    "TorchConfig",
    "TorchTrainer",
    "accelerate",
    "backward",
    "enable_reproducibility",
    "get_device",
    "get_devices",
    "prepare_data_loader",
    "prepare_model",
    "prepare_optimizer",
]

_ORIGINS = {
    "TorchConfig": "framework",
    "TorchTrainer": "trainer",
    "accelerate": "amp",
    "backward": "amp",
    "enable_reproducibility": "reproducibility",
    "get_device": "device",
    "get_devices": "device",
    "prepare_data_loader": "loader",
    "prepare_model": "model",
    "prepare_optimizer": "amp",
}


def __getattr__(name: str) -> Any:
    if name not in _ORIGINS:
        raise AttributeError(f"module 'shoal.train.torch' has no attribute {name!r}; it has: {', '.join(__all__)}")
    value = getattr(importlib.import_module(f"shoal.train.torch.{_ORIGINS[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
