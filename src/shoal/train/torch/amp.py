"""Mixed precision for models, optimizers and losses that shoal prepares."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from shoal.train.torch.device import get_device


class _MixedPrecision:
    """The setting of this process; each worker is a process."""

    def __init__(self) -> None:
        self.dtype: torch.dtype | None = None
        self.scaler: torch.amp.GradScaler | None = None


_setting = _MixedPrecision()


def accelerate(amp: bool | torch.dtype = False) -> None:
    """Turn mixed precision on for what is prepared after this call.

    Parameters
    ----------
    amp : bool or torch.dtype
        ``True`` for float16 with loss scaling on GPUs and bfloat16 on CPUs, or a dtype; ``False`` turns it off.
    """
    device = get_device()
    if amp is False:
        _setting.dtype = _setting.scaler = None
        return
    default = torch.float16 if device.type == "cuda" else torch.bfloat16
    _setting.dtype = default if amp is True else amp
    # Only float16 has so small a range that gradients vanish without scaling.
    _setting.scaler = torch.amp.GradScaler(device.type) if _setting.dtype is torch.float16 else None


def with_autocast(forward: Callable[..., Any], device: torch.device) -> Callable[..., Any]:
    """Return a forward function that computes in the precision that was chosen, or the function itself."""
    dtype = _setting.dtype
    if dtype is None:
        return forward

    def autocast_forward(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast(device.type, dtype=dtype):
            return forward(*args, **kwargs)

    return autocast_forward


def backward(tensor: torch.Tensor) -> None:
    """Compute gradients of a loss, scaled where mixed precision needs it; otherwise ``tensor.backward()``."""
    loss = _setting.scaler.scale(tensor) if _setting.scaler is not None else tensor
    loss.backward()  # type: ignore[no-untyped-call]


def prepare_optimizer(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Return an optimizer whose ``step()`` undoes the scaling of :func:`backward`; without scaling, the same one."""
    if _setting.scaler is None:
        return optimizer
    return ScaledOptimizer(optimizer, _setting.scaler)


class ScaledOptimizer(torch.optim.Optimizer):
    """An optimizer that steps through a gradient scaler. Everything else is the inner optimizer's."""

    def __init__(self, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler):
        self._optimizer = optimizer
        self._scaler = scaler

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_optimizer"], name)

    def step(self, closure: Any = None) -> Any:
        """Step with gradients of the right size; skipped by the scaler where one of them overflowed."""
        result = self._scaler.step(self._optimizer) if closure is None else self._scaler.step(self._optimizer, closure)
        self._scaler.update()
        return result

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Reset the gradients."""
        self._optimizer.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """Return the inner optimizer's state, so that it loads with or without scaling."""
        return self._optimizer.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the inner optimizer's state."""
        self._optimizer.load_state_dict(state_dict)
