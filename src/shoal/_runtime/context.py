"""The engine of this process: chosen by ``shoal.init()``, or by itself at the first ``fit()``."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Mapping
from typing import Any

from shoal import _plugins
from shoal._core.contracts import Engine
from shoal._core.launches import launch_of

_lock = threading.Lock()
_engine: Engine | None = None
_inline: Engine | None = None
CLUSTER_SETTINGS = {"ray": {"address", "heartbeat_s", "runtime_env", "autoscaling"}, "slurm": {"heartbeat_s"}}


def init(
    address: str | None,
    *,
    num_cpus: float | None,
    num_gpus: float | None,
    resources: Mapping[str, float] | None,
    local_mode: bool,
    **cluster: Any,
) -> None:
    """Choose the engine; see :func:`shoal.init`. ``cluster`` has the settings of engines of several machines."""
    global _engine
    name = "inline" if local_mode else address or default_engine(os.environ)
    settings = {key: value for key, value in cluster.items() if value is not None}
    if name == "auto" or ":" in name:  # of a Ray cluster
        settings["address"], name = name, "ray"
    if settings.keys() - CLUSTER_SETTINGS.get(name, set()):
        wrong = sorted(settings.keys() - CLUSTER_SETTINGS.get(name, set()))[0]
        known = " or ".join(repr(engine) for engine, known in CLUSTER_SETTINGS.items() if wrong in known)
        raise ValueError(f"{wrong} is a setting of the engine {known}, not of {name!r}")
    if name == "local":
        amounts = {"CPU": num_cpus, "GPU": num_gpus, **dict(resources or {})}
        limits = {key: float(amount) for key, amount in amounts.items() if amount is not None}
        for key, amount in limits.items():
            if not amount >= 0:
                raise ValueError(f"resources: {key}={amount:g} is not possible; amounts are 0 or more")
        engine: Engine = _plugins.load("engine", "local")(limits)
    else:
        if num_cpus is not None or num_gpus is not None or resources:
            raise ValueError(f"num_cpus, num_gpus and resources are settings of the local engine, not of {name!r}")
        engine = _plugins.load("engine", name)(**settings)
    with _lock:
        if _engine is not None:
            _engine.shutdown()
        _engine = engine


def default_engine(environment: Mapping[str, str]) -> str:
    """Return the engine that fits: the one in ``$SHOAL_ENGINE``, ``launched`` for a rank of a launcher, ``slurm`` in an
    allocation, else ``local``.
    """
    if named := environment.get("SHOAL_ENGINE"):
        return named
    if launch_of(environment) is not None:
        return "launched"
    return "slurm" if environment.get("SLURM_JOB_ID") and environment.get("SLURM_JOB_NODELIST") else "local"


def engine_for(in_process: bool) -> Engine:
    """Return the engine of this process, choosing one if none was; ``in_process`` asks for no workers at all."""
    global _engine, _inline
    with _lock:
        if in_process:
            _inline = _inline or _plugins.load("engine", "inline")()
            assert _inline is not None
            return _inline
        if _engine is None:
            _engine = _plugins.load("engine", default_engine(os.environ))()
        assert _engine is not None
        return _engine


def is_initialized() -> bool:
    """Whether this process has an engine."""
    return _engine is not None


def shutdown() -> None:
    """End what the engine keeps running, and forget the engine."""
    global _engine
    with _lock:
        if _engine is not None:
            _engine.shutdown()
            _engine = None


atexit.register(shutdown)
