"""What commands print: tables for people, JSON for programs."""

from __future__ import annotations

import math
import re
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from shoal._core import jsonl
from shoal._core.failure import human_bytes
from shoal._core.overview import Overview
from shoal._core.plain_data import flat
from shoal._runtime.display import HIDDEN, brief

COLORS = {"FINISHED": "green", "RUNNING": "cyan", "FAILED": "red", "DIED": "red", "ERROR": "red", "STOPPED": "yellow"}
WIDE = 200  # columns of what is not a terminal: a pipe has no width, and lines are not to be cut for it


def console() -> Console:
    """Return where to print."""
    width = None if sys.stdout.isatty() else WIDE
    return Console(width=width, highlight=False, soft_wrap=not sys.stdout.isatty())


def print_json(value: Any) -> None:
    """Print plain data or structs. What is not finite is written as in the files of a run."""
    plain = msgspec.to_builtins(value)
    sys.stdout.write(msgspec.json.format(jsonl.encode(plain)).decode() + "\n")


def table(*columns: str, rows: Sequence[Sequence[Any]]) -> Table:
    """Return a table without ornament. A heading that begins with ``>`` is of numbers; an empty column is left out."""
    filled = [number for number in range(len(columns)) if any(str(row[number]) for row in rows)]
    columns, rows = tuple(columns[n] for n in filled), [[row[n] for n in filled] for row in rows]
    headed = any(column.removeprefix(">") for column in columns)
    made = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0), show_header=headed)
    for column in columns:
        right = column.startswith(">")
        made.add_column(column.removeprefix(">"), justify="right" if right else "left", overflow="fold")
    for row in rows:
        made.add_row(*(cell if isinstance(cell, Text) else Text(str(cell)) for cell in row))
    return made


def state(overview: Overview) -> Text:
    """Return the state of a run, in its color."""
    return Text(overview.state, style=COLORS.get(overview.state, ""))


def age(seconds: float) -> str:
    """Return a duration in its largest unit."""
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def moment(at: float | None) -> str:
    """Return a time of day, of this machine's clock."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at)) if at else ""


def size(count: int) -> str:
    """Return a size as people read it."""
    return human_bytes(count)


def best(overview: Overview) -> str:
    """Return the best value of the metric that a run is judged by, else of what it last reported."""
    if overview.best is not None:
        return f"{overview.metric} {brief(overview.best)}"
    shown = [
        f"{key} {brief(value)}"
        for key, value in overview.metrics.items()
        if key not in HIDDEN and isinstance(value, int | float) and not isinstance(value, bool)
    ]
    return shown[0] if shown else ""


def told(metrics: Mapping[str, Any]) -> str:
    """Return metrics, or parameters, in one line."""
    return ", ".join([f"{key} {brief(value)}" for key, value in flat(metrics).items() if key not in HIDDEN][:6])


def finite(value: Any) -> bool:
    """Whether a value can be drawn."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def seconds_of(text: str) -> float:
    """Return how long ``90s``, ``15m``, ``12h``, ``7d`` or ``2w`` is, in seconds.

    Raises
    ------
    ValueError
        If it is none of these.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhdw])", text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a duration: give a number and a unit, such as 90s, 15m, 12h, 7d or 2w")
    return float(match[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}[match[2]]
