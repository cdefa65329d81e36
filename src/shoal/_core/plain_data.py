"""Configurations and metrics as plain data, for files that people and other programs read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def printable(value: Any) -> Any:
    """Return a configuration as plain data: what JSON cannot hold appears as its text."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping):
        return {str(key): printable(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [printable(inner) for inner in value]
    return repr(value)


def is_plain(value: Any) -> bool:
    """Whether JSON holds all of a value, so that it comes back as it was."""
    if value is None or type(value) in {bool, int, float, str}:
        return True
    if type(value) is dict:
        return all(type(key) is str and is_plain(inner) for key, inner in value.items())
    return type(value) is list and all(map(is_plain, value))


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a nested configuration side by side, under paths such as ``model/layers``."""
    found: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            found.update(flat(value, f"{prefix}{key}/"))
        else:
            found[f"{prefix}{key}"] = value
    return found
