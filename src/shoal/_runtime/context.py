"""The engine of this process: chosen by ``shoal.init()``, or by itself at the first ``fit()``."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Mapping

from shoal import _plugins
from shoal._core.contracts import Engine

_lock = threading.Lock()
_engine: Engine | None = None
_inline: Engine | None = None
LAUNCHER_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


def init(
    address: str | None,
    *,
    num_cpus: float | None,
    num_gpus: float | None,
    resources: Mapping[str, float] | None,
    local_mode: bool,
) -> None:
    """Choose the engine; see :func:`shoal.init`."""
    global _engine
    name = "inline" if local_mode else address or default_engine(os.environ)
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
        engine = _plugins.load("engine", name)()
    with _lock:
        if _engine is not None:
            _engine.shutdown()
        _engine = engine


def default_engine(environment: Mapping[str, str]) -> str:
    """Return the engine that fits the environment: ``launched`` where a launcher has set every rank variable."""
    return "launched" if all(environment.get(name) for name in LAUNCHER_VARIABLES) else "local"


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
