"""What a person sees of a run while it goes on: a live picture on a terminal or in a notebook, else lines."""

from __future__ import annotations

import math
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from shoal._core.contracts import Callback
from shoal._runtime.logs import LineSplitter
from shoal._runtime.notebook import Output, in_notebook
from shoal._runtime.picture import Canvas, Cell, Picture, View
from shoal._runtime.screen import Screen

HIDDEN = frozenset({"training_iteration", "timestamp", "time_total_s", "attempt", "data_wait_share"})
LINE_INTERVAL = 1.0  # seconds between two plain lines
BARS = "▁▂▃▄▅▆▇█"
HISTORY = 40


def make_display(verbose: int, show_ranks: Sequence[int] | None) -> Display:
    """Return the display that fits where the driver's output goes."""
    if verbose <= 0:
        return Display(show_ranks)
    place = canvas()
    return LineDisplay(show_ranks) if place is None else LiveDisplay(show_ranks, place)


class Display(Callback):
    """Shows only what workers print. Belongs to the supervisor's thread."""

    def __init__(self, show_ranks: Sequence[int] | None):
        self._show_ranks = None if show_ranks is None else frozenset(show_ranks)
        self._splitters: dict[int, LineSplitter] = {}

    def on_output(self, rank: int, data: bytes) -> None:
        """Show what a worker wrote, a line at a time, with its rank."""
        if self._show_ranks is None or rank in self._show_ranks:
            self._show_lines(rank, self._splitters.setdefault(rank, LineSplitter()).feed(data))

    def on_output_end(self, rank: int) -> None:
        """Show the last line of a worker that ended without a line break."""
        if rank in self._splitters:
            self._show_lines(rank, self._splitters.pop(rank).rest())

    def tick(self) -> float:
        """Draw if it is time; return after how many seconds to call again."""
        return math.inf

    def close(self) -> None:
        """Leave the terminal as it was."""

    def _show_lines(self, rank: int, lines: list[str]) -> None:
        if lines:
            write(sys.stdout, "".join(f"[rank {rank}] {line}\n" for line in lines))


class LineDisplay(Display):
    """Plain lines, for pipes, log files and CI: at most one a second for metrics, and everything that happens."""

    def __init__(self, show_ranks: Sequence[int] | None):
        super().__init__(show_ranks)
        self._name = ""
        self._workers = 0
        self._shown_at = -math.inf
        self._unshown: Mapping[str, Any] | None = None

    def on_run_start(self, name: str, path: str, **info: Any) -> None:
        self._name = name
        self._line(f"run {name} in {path}")

    def on_state(self, state: str, attempt: int, workers: Mapping[int, str]) -> None:
        self._workers = len(workers)

    def on_report(self, metrics: Mapping[str, Any]) -> None:
        self._unshown = metrics
        if time.monotonic() - self._shown_at >= LINE_INTERVAL:
            self._show_metrics()

    def on_message(self, text: str, level: str) -> None:
        self._line(text if level == "info" else f"{level}: {text}")

    def on_run_end(self, state: str, reason: str) -> None:
        self._show_metrics()
        self._line(f"{self._name} {state}" + (f": {reason}" if reason else ""))

    def _show_metrics(self) -> None:
        if self._unshown is None:
            return
        metrics, self._unshown = self._unshown, None
        self._shown_at = time.monotonic()
        told = "  ".join(f"{key} {brief(value)}" for key, value in shown(metrics).items())
        workers = f"{self._workers} worker" + ("s" if self._workers != 1 else "")
        facts = ", ".join(fact for fact in (workers, elapsed(metrics["time_total_s"]), data_wait(metrics)) if fact)
        self._line(f"report {metrics['training_iteration']}  {told}  ({facts})")

    def _line(self, text: str) -> None:
        write(sys.stderr, f"shoal: {text}\n")


class LiveDisplay(Display):
    """A picture that stays in its place while the run goes on, beside what workers write."""

    def __init__(self, show_ranks: Sequence[int] | None, canvas: Canvas):
        super().__init__(show_ranks)
        self._name = self._path = ""
        self._state = "PENDING"
        self._attempt = 0
        self._workers: Mapping[int, str] = {}
        self._metrics: Mapping[str, Any] = {}
        self._curves: dict[str, deque[float]] = {}
        self._started = time.monotonic()
        self._canvas = canvas
        self._view = View(canvas, self.picture)

    def on_run_start(self, name: str, path: str, **info: Any) -> None:
        self._name, self._path = name, path
        self._view.change()

    def on_state(self, state: str, attempt: int, workers: Mapping[int, str]) -> None:
        self._state, self._attempt, self._workers = state, attempt, workers
        self._view.change()

    def on_report(self, metrics: Mapping[str, Any]) -> None:
        self._metrics = metrics
        for key, value in shown(metrics).items():
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                self._curves.setdefault(key, deque(maxlen=HISTORY)).append(float(value))
        self._view.change()

    def on_message(self, text: str, level: str) -> None:
        self._canvas.say(f"shoal: {text}", style_of(level))

    def on_run_end(self, state: str, reason: str) -> None:
        self._state = state + (f": {reason}" if reason else "")
        self._view.change()

    def tick(self) -> float:
        """Draw if something changed; the clock in the picture moves once a second."""
        return self._view.tick()

    def close(self) -> None:
        """Draw a last time and leave the picture standing."""
        self._view.close()

    def _show_lines(self, rank: int, lines: list[str]) -> None:
        if lines:
            self._canvas.print([f"[rank {rank}] {line}" for line in lines])

    def picture(self) -> Picture:
        """Return what is to be seen now."""
        rows: list[tuple[Cell, ...]] = [(Cell("workers", "dim"), Cell(describe_workers(self._workers)))]
        if self._metrics:
            rows.append((Cell("report", "dim"), Cell(str(self._metrics["training_iteration"]))))
        for key, value in shown(self._metrics).items():
            curve = sparkline(self._curves.get(key, ()))
            rows.append((Cell(key, "dim"), Cell(brief(value), "bold"), Cell(curve, "cyan")))
        if waiting := data_wait(self._metrics):
            rows.append((Cell("data", "dim"), Cell(waiting)))
        attempt = f" · attempt {self._attempt}" if self._attempt > 1 else ""
        title = f"{self._name} · {self._state}{attempt} · {elapsed(time.monotonic() - self._started)}"
        return Picture(title, self._state, self._path, rows)


def canvas() -> Canvas | None:
    """Return where the driver's output can be drawn upon; None in a pipe or a file, which take lines."""
    if in_notebook():
        return Output()
    return Screen() if sys.stderr.isatty() and sys.stdout.isatty() else None


def style_of(level: str) -> str:
    """Return how a message of a level looks."""
    return {"warning": "yellow", "error": "red"}.get(level, "dim")


def write(stream: TextIO, text: str) -> None:
    """Write to a stream of the driver; a reader that has gone away is not the run's concern."""
    try:
        stream.write(text)
        stream.flush()
    except (OSError, ValueError):
        pass


def data_wait(metrics: Mapping[str, Any]) -> str:
    """Return how much of its time training has waited for data, in words; empty where that was not measured."""
    waited = metrics.get("data_wait_share")
    return f"{waited:.0%} of the time waiting for data" if waited is not None else ""


def shown(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metrics that a person gave, without what shoal adds."""
    return {key: value for key, value in metrics.items() if key not in HIDDEN}


def brief(value: Any) -> str:
    """Return a value in few characters."""
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1e5 else f"{value:,.0f}" if abs(value) < 1e12 else f"{value:.4g}"
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."


def elapsed(seconds: float) -> str:
    """Return a duration as a clock shows it."""
    whole = int(seconds)
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{hours}:{minutes:02d}:{whole % 60:02d}" if hours else f"{minutes}:{whole % 60:02d}"


def describe_workers(workers: Mapping[int, str]) -> str:
    """Return how many workers are in which phase."""
    counts: dict[str, int] = {}
    for phase in workers.values():
        counts[phase] = counts.get(phase, 0) + 1
    return ", ".join(f"{count} {phase}" for phase, count in counts.items()) or "waiting for room"


def sparkline(values: Sequence[float]) -> str:
    """Return a small curve of the finite values, drawn with block characters."""
    finite = [value for value in values if math.isfinite(value)]
    if len(finite) < 2:
        return ""
    low, high = min(finite), max(finite)
    if low == high:
        return BARS[0] * len(finite)
    return "".join(BARS[round((value - low) / (high - low) * (len(BARS) - 1))] for value in finite)
