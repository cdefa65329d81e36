"""Measurements, and the table that is made of them."""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

RESULTS = Path(__file__).parent / "results"
PEERS_PYTHON = Path(__file__).parents[1] / ".venv-peers/bin/python"


@dataclass(frozen=True)
class Measurement:
    """One figure: samples in ``unit``, the peer's samples of the same thing in the same session, the budget."""

    what: str
    unit: str
    samples: list[float]
    peer: str = ""
    peer_samples: list[float] | None = None
    budget: str = ""

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def peer_median(self) -> float | None:
        return statistics.median(self.peer_samples) if self.peer_samples else None


def repeated(measure: Callable[[], float], times: int) -> list[float]:
    """Return several samples of one figure."""
    return [measure() for _ in range(times)]


def table(measurements: Iterable[Measurement]) -> str:
    """Return the measurements as text for a terminal."""
    lines = [f"{'what':48} {'median':>10} {'min':>9} {'max':>9}  {'budget':16} {'peer':>22} {'ratio':>7}"]
    for m in measurements:
        peer = f"{m.peer} {m.peer_median:.3g} {m.unit}" if m.peer_median else ""
        ratio = f"{m.median / m.peer_median:.3g}" if m.peer_median else ""
        lines.append(
            f"{m.what:48} {m.median:>7.3g} {m.unit:2} {min(m.samples):>9.3g} {max(m.samples):>9.3g}  {m.budget:16} "
            f"{peer:>22} {ratio:>7}"
        )
    return "\n".join(lines)


def save(measurements: Iterable[Measurement]) -> Path:
    """Write the measurements as JSON and return where."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{time.strftime('%Y-%m-%d_%H-%M-%S')}.json"
    machine = {"cpus": os.cpu_count(), "python": platform.python_version(), "system": platform.platform()}
    rows = [{**asdict(m), "median": m.median, "peer_median": m.peer_median} for m in measurements]
    path.write_text(json.dumps({"machine": machine, "measurements": rows}, indent=1) + "\n")
    return path
