"""JSON for the files of a run. NaN and the infinities, which JSON lacks, are kept as ``{"$float": "NaN"}``."""

from __future__ import annotations

import math
from typing import Any

import msgspec

_NAMES = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_encode = msgspec.json.Encoder().encode


_AS_THEY_ARE = frozenset({str, int, bool, type(None)})


def _finite(value: Any) -> Any:
    if type(value) in _AS_THEY_ARE:
        return value
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        return {"$float": "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"}
    if isinstance(value, dict):
        return {key: inner if type(inner) in _AS_THEY_ARE else _finite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(inner) for inner in value]
    return value


def _restored(value: Any) -> Any:
    if isinstance(value, dict):
        if len(value) == 1 and "$float" in value:
            return _NAMES.get(value["$float"], math.nan)
        return {key: _restored(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_restored(inner) for inner in value]
    return value


def encode(value: Any) -> bytes:
    """Return plain data or a struct as JSON, without a line break."""
    encoded = _encode(value)
    if b"null" not in encoded:  # which msgspec also writes for what is not finite
        return encoded
    return _encode(_finite(msgspec.to_builtins(value) if isinstance(value, msgspec.Struct) else value))


def decode(data: bytes | str) -> Any:
    """Return the plain data that :func:`encode` was given."""
    return _restored(msgspec.json.decode(data))


def lines(data: bytes) -> list[Any]:
    """Return the values of JSON lines. A torn line, the trace of a death while writing, is left out."""
    values = []
    for line in data.splitlines():
        try:
            values.append(decode(line))
        except msgspec.DecodeError:
            continue
    return values
