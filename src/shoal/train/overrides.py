"""What the person who starts a script asks for, beside what the script itself says: ``shoal run --workers 4 …``.

It travels in ``$SHOAL_OVERRIDES`` to the trainers and tuners of the script. What the script itself sets stays.
"""

from __future__ import annotations

import dataclasses
import itertools
import sys
from typing import Any

from shoal._runtime.command import overrides
from shoal.train.config import FailureConfig, RunConfig, ScalingConfig

_said: set[str] = set()
_fits = itertools.count(1)


def scaling(config: ScalingConfig) -> ScalingConfig:
    """Return a scaling configuration with what was asked for where it says nothing else."""
    wanted = overrides()
    changes: dict[str, Any] = {}
    if (workers := wanted.get("num_workers")) is not None:
        workers = tuple(workers) if isinstance(workers, list) else workers
        _set(changes, config, "num_workers", workers, "--workers")
    resources = dict(config.resources_per_worker or {})
    for name, option in (("GPU", "--gpus"), ("CPU", "--cpus")):
        amount = wanted.get(name)
        if amount is None:
            continue
        if name in resources or (name == "GPU" and config.use_gpu and amount != 1):
            _ignored(option, amount, f"resources_per_worker={dict(config.resources_per_worker or {'GPU': 1})}")
            continue
        resources[name] = amount
        changes["resources_per_worker"] = resources
        if name == "GPU":
            changes["use_gpu"] = amount > 0
    return dataclasses.replace(config, **changes) if changes else config


def run(config: RunConfig) -> RunConfig:
    """Return a run configuration with what was asked for where it says nothing else.

    A name that was asked for is that of the first run of a script; the next ones are called ``<name>-2`` and so on.
    """
    wanted = overrides()
    if not wanted:
        return config
    changes: dict[str, Any] = {}
    if (name := wanted.get("name")) is not None and config.name in (None, name):
        number = next(_fits)
        changes["name"] = name if number == 1 else f"{name}-{number}"
    elif name is not None:
        _ignored("--name", name, f"name={config.name!r}")
    for field, option in (("storage_path", "--storage"), ("verbose", "--verbose")):
        if field in wanted:
            _set(changes, config, field, wanted[field], option)
    if wanted.get("resume") is not None and (config.name or changes.get("name")):
        _set(changes, config, "resume", wanted["resume"], "--resume")
    if wanted.get("max_failures") is not None:
        failure: dict[str, Any] = {}
        kept = config.failure_config or FailureConfig()
        _set(failure, kept, "max_failures", wanted["max_failures"], "--max-failures")
        changes["failure_config"] = dataclasses.replace(kept, **failure)
    return dataclasses.replace(config, **changes) if changes else config


def _set(changes: dict[str, Any], config: Any, field: str, value: Any, option: str) -> None:
    default = next(f.default for f in dataclasses.fields(config) if f.name == field)
    there = getattr(config, field)
    if there == default or str(there) == str(value):
        changes[field] = value
    elif field == "resume":
        return  # a script that goes on by itself needs not be told to
    else:
        _ignored(option, value, f"{field}={there!r}")


def _ignored(option: str, value: Any, there: str) -> None:
    text = f"shoal run: {option} {value} changes nothing, for the script itself says {there}"
    if text not in _said:
        _said.add(text)
        print(text, file=sys.stderr)
