"""A model made ready for many workers: on its device, wrapped for data parallel training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from shoal._worker import session as sessions
from shoal.train.torch.amp import with_autocast
from shoal.train.torch.device import get_device

PREFIX = "module."
STRATEGIES = ("ddp", "fsdp", None)


class DistributedDataParallel(nn.parallel.DistributedDataParallel):
    """Torch's, but with the state dictionary of the model itself, so that it fits one worker and many."""

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Return the model's state, without the ``module.`` prefix."""
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Load a state with or without the prefix."""
        return self.module.load_state_dict(state_dict, *args, **kwargs)


def prepare_model(
    model: nn.Module,
    move_to_device: bool | torch.device = True,
    parallel_strategy: str | None = "ddp",
    parallel_strategy_kwargs: Mapping[str, Any] | None = None,
) -> nn.Module:
    """Return the model on the worker's device, wrapped for data parallel training if there is more than one worker.

    Its ``state_dict()`` has no ``module.`` prefix and its ``load_state_dict()`` takes either form, so a checkpoint
    moves between one worker and many.

    Parameters
    ----------
    model : torch.nn.Module
        The model.
    move_to_device : bool or torch.device
        Whether to move it to the worker's device, or which device to move it to.
    parallel_strategy : str or None
        ``"ddp"``: every worker has the whole model. ``"fsdp"``: parameters, gradients and optimizer state are sharded
        (FSDP2, ``torch.distributed.fsdp.fully_shard``). ``None``: the model is not wrapped.
    parallel_strategy_kwargs : mapping, optional
        Arguments of ``DistributedDataParallel`` or ``fully_shard``.

    Raises
    ------
    ValueError
        If the strategy is unknown.
    OutsideWorkerError
        If this is not a worker.

    Examples
    --------
    >>> from shoal import train
    >>> def train_func():
    ...     model = train.torch.prepare_model(torch.nn.Linear(10, 1))
    """
    session = sessions.current("train.torch.prepare_model()")
    if parallel_strategy not in STRATEGIES:
        raise ValueError(f"parallel_strategy={parallel_strategy!r}: choose 'ddp', 'fsdp' or None")
    device = move_to_device if isinstance(move_to_device, torch.device) else get_device()
    if move_to_device:
        model = model.to(device)
    model.register_load_state_dict_pre_hook(_take_either_form)  # type: ignore[no-untyped-call]
    model.forward = with_autocast(model.forward, device)
    settings = dict(parallel_strategy_kwargs or {})
    trainable = any(parameter.requires_grad for parameter in model.parameters())
    if session.ranks.world_size == 1 or parallel_strategy is None or not trainable:
        return model
    if parallel_strategy == "fsdp":
        return _sharded(model, device, settings)
    if device.type == "cuda":
        settings = {"device_ids": [device], "output_device": device, **settings}
    return DistributedDataParallel(model, **settings)


def _sharded(model: nn.Module, device: torch.device, settings: dict[str, Any]) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    world_size = torch.distributed.get_world_size()
    mesh = settings.pop("mesh", None) or init_device_mesh(device.type, (world_size,))
    fully_shard(model, mesh=mesh, **settings)  # in place: the model becomes an FSDPModule
    return model


def _take_either_form(module: nn.Module, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
    """Strip ``module.`` from the keys of a state that a plain DDP wrapper saved."""
    head = prefix + PREFIX
    if prefix or hasattr(module, "module") or not any(key.startswith(head) for key in state_dict):
        return
    for key in [key for key in state_dict if key.startswith(head)]:
        state_dict[key.removeprefix(head)] = state_dict.pop(key)
