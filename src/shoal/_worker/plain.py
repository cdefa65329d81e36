"""Metrics as plain data: what a report may contain, and nothing that changes or dies after it was reported."""

from __future__ import annotations

from typing import Any

INT64 = range(-(2**63), 2**63)
_SCALARS = frozenset({float, str, bool, type(None)})


def plain(metrics: Any) -> dict[str, Any]:
    """Return a copy of the metrics that consists of dicts, lists, texts, numbers, booleans and ``None``.

    NumPy scalars, and tensors and arrays of one element, become numbers. Anything else is a ``TypeError`` that names
    the key.
    """
    if not isinstance(metrics, dict):
        raise TypeError(f"report() takes a dict of metrics such as {{'loss': 0.1}}, not {type(metrics).__name__}")
    return _dict(metrics, "")


def _dict(values: dict[Any, Any], path: str) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in values.items():
        if type(key) is not str:
            raise TypeError(f"the metric key {path}{key!r} must be a text, not {type(key).__name__}")
        result[key] = value if type(value) in _SCALARS else _value(value, f"{path}{key}")
    return result


def _value(value: Any, path: str) -> Any:
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        if int(value) not in INT64:
            raise TypeError(f"metric {path!r} is an integer of more than 64 bits; report it as a float or a text")
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, str):
        return str(value)
    if isinstance(value, dict):
        return _dict(value, f"{path}/")
    if isinstance(value, (list, tuple)):
        return [_value(inner, f"{path}[{index}]") for index, inner in enumerate(value)]
    return _scalar(value, path)


def _scalar(value: Any, path: str) -> Any:
    """Convert what NumPy, torch, jax and tensorflow share: one element that ``item()`` or ``numpy()`` gives."""
    shape = getattr(value, "shape", None)
    convert = getattr(value, "item", None) or getattr(value, "numpy", None)
    if shape is None or convert is None:
        raise TypeError(
            f"metric {path!r} is a {type(value).__module__}.{type(value).__qualname__}, which is no plain data. "
            "Report numbers, texts, booleans, None, and dicts or lists of them; put anything else into a checkpoint"
        )
    size = 1
    for length in shape:
        size *= int(length)
    if size != 1:
        raise TypeError(
            f"metric {path!r} is a {type(value).__name__} of shape {tuple(shape)}; report single numbers, such as its "
            ".mean().item(), or a list made with .tolist()"
        )
    result = convert()
    return _value(result if isinstance(result, (bool, int, float, str)) else float(result), path)
