"""What a person sees of a run while it goes on: a live panel on a terminal, plain lines anywhere else."""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from shoal._core.contracts import Callback
from shoal._runtime.logs import LineSplitter
from shoal._runtime.terminal import silent_control_characters

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live

HIDDEN = frozenset({"training_iteration", "timestamp", "time_total_s", "attempt", "data_wait_share"})
REFRESH = 0.1  # seconds between two pictures
LINE_INTERVAL = 1.0  # seconds between two plain lines
BARS = "▁▂▃▄▅▆▇█"
HISTORY = 40


def make_display(verbose: int, show_ranks: Sequence[int] | None) -> Display:
    """Return the display that fits where the driver's output goes."""
    if verbose <= 0:
        return Display(show_ranks)
    if sys.stderr.isatty() and sys.stdout.isatty():
        return LiveDisplay(show_ranks)
    return LineDisplay(show_ranks)


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
    """A panel that stays at the bottom of the terminal while workers' lines scroll above it."""

    def __init__(self, show_ranks: Sequence[int] | None):
        super().__init__(show_ranks)
        self._name = self._path = ""
        self._state = "PENDING"
        self._attempt = 0
        self._workers: Mapping[int, str] = {}
        self._metrics: Mapping[str, Any] = {}
        self._curves: dict[str, deque[float]] = {}
        self._started = time.monotonic()
        self._drawn_at = -math.inf
        self._changed = False
        self._screen = Screen()

    def on_run_start(self, name: str, path: str, **info: Any) -> None:
        self._name, self._path = name, path
        self._changed = True

    def on_state(self, state: str, attempt: int, workers: Mapping[int, str]) -> None:
        self._state, self._attempt, self._workers = state, attempt, workers
        self._changed = True

    def on_report(self, metrics: Mapping[str, Any]) -> None:
        self._metrics = metrics
        for key, value in shown(metrics).items():
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                self._curves.setdefault(key, deque(maxlen=HISTORY)).append(float(value))
        self._changed = True

    def on_message(self, text: str, level: str) -> None:
        style = {"warning": "yellow", "error": "red"}.get(level, "dim")
        self._screen.console.print(f"shoal: {text}", style=style, markup=False, highlight=False)

    def on_run_end(self, state: str, reason: str) -> None:
        self._state = state + (f": {reason}" if reason else "")
        self._changed = True

    def tick(self) -> float:
        """Draw if something changed; the clock in the panel moves once a second."""
        since = time.monotonic() - self._drawn_at
        if since >= (REFRESH if self._changed else 1.0):
            self._draw()
            return REFRESH
        return REFRESH - since if self._changed else 1.0 - since

    def close(self) -> None:
        """Draw a last time and leave the panel standing."""
        self._draw()
        self._screen.close()

    def _show_lines(self, rank: int, lines: list[str]) -> None:
        for line in lines:
            self._screen.console.print(f"[rank {rank}] {line}", markup=False, highlight=False, soft_wrap=True)

    def _draw(self) -> None:
        self._screen.show(self.panel())
        self._drawn_at = time.monotonic()
        self._changed = False

    def panel(self) -> RenderableType:
        """Return the picture."""
        from rich.panel import Panel
        from rich.table import Table
        from rich.text import Text

        table = Table.grid(padding=(0, 2))
        table.add_row(Text("workers", style="dim"), Text(describe_workers(self._workers)))
        if self._metrics:
            table.add_row(Text("report", style="dim"), Text(str(self._metrics["training_iteration"])))
        for key, value in shown(self._metrics).items():
            table.add_row(
                Text(key, style="dim"),
                Text(brief(value), style="bold"),
                Text(sparkline(self._curves.get(key, ())), "cyan"),
            )
        if waiting := data_wait(self._metrics):
            table.add_row(Text("data", style="dim"), Text(waiting))
        attempt = f" · attempt {self._attempt}" if self._attempt > 1 else ""
        title = Text(f" {self._name} · {self._state}{attempt} · {elapsed(time.monotonic() - self._started)} ")
        color = {"FAILED": "red", "FINISHED": "green", "RUNNING": "cyan"}.get(self._state.partition(":")[0], "yellow")
        return Panel(table, title=title, title_align="left", subtitle=Text(self._path, style="dim"), border_style=color)


class Screen:
    """A picture at the bottom of the terminal, above which lines scroll. It is there from its first use on."""

    def __init__(self) -> None:
        self._live: Live | None = None
        self._terminal = contextlib.ExitStack()

    @property
    def console(self) -> Console:
        """Where lines are printed."""
        return self._start().console

    def show(self, picture: RenderableType) -> None:
        """Draw a picture in the place of the last one."""
        self._start().update(picture, refresh=True)

    def close(self) -> None:
        """Leave the last picture standing."""
        if self._live is not None:
            self._live.stop()
            self._live = None
            self._terminal.close()

    def _start(self) -> Live:
        if self._live is None:
            from rich.console import Console
            from rich.live import Live

            self._live = Live(
                console=Console(), auto_refresh=False, redirect_stdout=False, redirect_stderr=False, transient=False
            )
            self._terminal.enter_context(silent_control_characters())
            self._live.start()
        return self._live


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
