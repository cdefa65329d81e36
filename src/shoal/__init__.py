"""shoal trains one function on many workers and searches hyperparameters with the same workers.

The usual imports are ``from shoal import train`` and ``from shoal.train.torch import TorchTrainer``.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from shoal._version import __version__

if TYPE_CHECKING:
    from shoal import abc as abc
    from shoal import errors as errors
    from shoal import train as train

__all__ = ["__version__", "abc", "errors", "init", "is_initialized", "shutdown", "train"]

_OF_RAY = frozenset(
    {
        "configure_logging",
        "dashboard_host",
        "dashboard_port",
        "ignore_reinit_error",
        "include_dashboard",
        "labels",
        "log_to_driver",
        "logging_config",
        "logging_format",
        "logging_level",
        "namespace",
        "object_store_memory",
    }
)
_MODULES = frozenset({"abc", "air", "as_ray", "engines", "errors", "testing", "train", "tune"})


def init(
    address: str | None = None,
    *,
    num_cpus: float | None = None,
    num_gpus: float | None = None,
    resources: Mapping[str, float] | None = None,
    local_mode: bool = False,
    heartbeat_s: float | None = None,
    runtime_env: Mapping[str, Any] | None = None,
    autoscaling: bool | None = None,
    **of_ray: Any,
) -> None:
    """Choose where workers run. Optional: without it they run on this machine.

    Parameters
    ----------
    address : str, optional
        A Ray cluster: ``"auto"`` for the one that this machine is part of, ``"head:6379"``, or ``"ray://head:10001"``
        from outside. Or the name of an engine: ``"local"``, ``"slurm"`` (in an allocation), ``"launched"``,
        ``"inline"``. By default ``launched`` under a launcher, ``slurm`` in a SLURM job, else ``local``.
    num_cpus, num_gpus : float, optional
        How much of this machine the local engine may give out. By default all that this process may use.
    resources : mapping of str to float, optional
        Custom resources of this machine, such as ``{"license": 2}``, for ``ScalingConfig(resources_per_worker=...)``.
    local_mode : bool
        Run every training function in the calling process, for a debugger.
    heartbeat_s : float, optional
        On clusters: after how many seconds of silence a machine counts as lost; 5 by default. Workers on a machine
        that has not heard of the driver for so long end by themselves.
    runtime_env : mapping, optional
        On Ray: what the machines need of this one, such as ``{"working_dir": "."}``.
    autoscaling : bool, optional
        On Ray: whether machines come when they are asked for. By default what the cluster says of itself.
    **of_ray
        What scripts say to ``ray.init`` about its dashboard, logs and object store is taken and has no effect; nor
        has ``ignore_reinit_error``, since every call chooses anew.

    Examples
    --------
    >>> import shoal
    >>> shoal.init(num_cpus=4, resources={"license": 2})
    >>> shoal.shutdown()
    """
    from shoal._runtime import context

    if unknown := sorted(of_ray.keys() - _OF_RAY):
        raise TypeError(f"init() got an unexpected keyword argument {unknown[0]!r}")
    context.init(
        address,
        num_cpus=num_cpus,
        num_gpus=num_gpus,
        resources=resources,
        local_mode=local_mode,
        heartbeat_s=heartbeat_s,
        runtime_env=runtime_env,
        autoscaling=autoscaling,
    )


def shutdown() -> None:
    """End every process that shoal keeps on this machine for the next ``fit()``. The next one starts them again."""
    from shoal._runtime import context

    context.shutdown()


def is_initialized() -> bool:
    """Whether an engine was chosen by :func:`init` or by a first ``fit()``."""
    from shoal._runtime import context

    return context.is_initialized()


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"shoal.{name}")
    raise AttributeError(f"module 'shoal' has no attribute {name!r}")
