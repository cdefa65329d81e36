"""What a person sees of an experiment: a live table on a terminal or in a notebook, else quiet lines."""

from __future__ import annotations

import math
import sys
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

from shoal._core.experiment import Experiment
from shoal._core.plain_data import flat, printable
from shoal._core.retention import lookup
from shoal._core.trials import Trial, TrialStatus
from shoal._runtime.display import Display, brief, canvas, elapsed, shown, style_of, write
from shoal._runtime.picture import Canvas, Cell, Picture, View

LINE_INTERVAL = 10.0  # seconds between two lines of progress
ROWS = 16  # trials in the table; the others are counted
COLUMNS = 6  # parameters, and as many metrics, in the table


class SearchDisplay:
    """Shows only what trials print, and what a person has to know."""

    def __init__(self) -> None:
        self.name = self.path = ""
        self.machine: Experiment | None = None
        self.counts: Counter[TrialStatus] = Counter()
        self.began = time.monotonic()
        self.total: int | None = None
        self._statuses: dict[str, TrialStatus] = {}

    def begin(self, name: str, path: str, machine: Experiment) -> None:
        """The experiment begins, or goes on."""
        self.name, self.path, self.machine = name, path, machine
        for trial in machine.table.get_trials():
            self._count(trial, known=True)

    def on_trial(self, what: str, trial: Trial) -> None:
        """Something happened to a trial."""
        self._count(trial)

    def on_message(self, text: str, level: str) -> None:
        """Something that a person should know."""

    def on_output(self, trial_id: str, lines: list[str]) -> None:
        """A trial printed these lines."""
        write(sys.stdout, "".join(f"[{_short(trial_id)}] {line}\n" for line in lines))

    def tick(self) -> float:
        """Draw if it is time; return after how many seconds to call again."""
        return math.inf

    def close(self) -> None:
        """Leave the terminal as it was."""

    def end(self, state: str, reason: str, place: str) -> None:
        """The experiment is over; ``place`` is where the best trial lies."""

    def _count(self, trial: Trial, known: bool = False) -> None:
        """Keep the numbers by status up to date; an ended trial is not kept by name."""
        before = self._statuses.pop(trial.trial_id, None)
        if before is not None:
            self.counts[before] -= 1
        elif trial.finished and not known:
            return  # it has been counted when it ended
        self.counts[trial.status] += 1
        if not trial.finished:
            self._statuses[trial.trial_id] = trial.status

    def progress(self) -> str:
        """Return the counts, the time and when it may be done, in one line."""
        parts = [f"{count} {status.lower()}" for status, count in self.counts.items() if count]
        done = self.counts[TrialStatus.TERMINATED] + self.counts[TrialStatus.ERROR]
        passed = time.monotonic() - self.began
        line = f"{done}{f'/{self.total}' if self.total else ''} trials done ({', '.join(parts)}), {elapsed(passed)}"
        if self.total and 0 < done < self.total and passed > 1:
            line += f", about {elapsed(passed / done * (self.total - done))} to go"
        return line

    def best(self) -> str:
        """Return the best trial so far in one line; empty before the first."""
        machine = self.machine
        if machine is None or machine.best is None:
            return ""
        trial = machine.best
        return f"best {machine.metric} {brief(machine.best_value)}: {_short(trial.trial_id)} {described(trial.config)}"


class LineSearchDisplay(SearchDisplay):
    """Plain lines, for pipes, log files and CI."""

    def __init__(self) -> None:
        super().__init__()
        self._shown_at = time.monotonic()

    def begin(self, name: str, path: str, machine: Experiment) -> None:
        super().begin(name, path, machine)
        self._line(f"search {name} in {path}")

    def on_trial(self, what: str, trial: Trial) -> None:
        super().on_trial(what, trial)
        if what == "error":
            self._line(f"error: trial {_short(trial.trial_id)} failed: {trial.error} {described(trial.config)}")
        elif time.monotonic() - self._shown_at >= LINE_INTERVAL:
            self._shown_at = time.monotonic()
            self._line("; ".join(filter(None, [self.progress(), self.best()])))

    def on_message(self, text: str, level: str) -> None:
        self._line(text if level == "info" else f"{level}: {text}")

    def end(self, state: str, reason: str, place: str) -> None:
        self._line(f"{self.name} {state}" + (f": {reason}" if reason else ""))
        self._line(self.progress())
        if self.best():
            self._line(f"{self.best()}, in {place}")

    def _line(self, text: str) -> None:
        write(sys.stderr, f"shoal: {text}\n")


class LiveSearchDisplay(SearchDisplay):
    """A table that stays in its place while the search goes on, beside what trials write."""

    def __init__(self, canvas: Canvas) -> None:
        super().__init__()
        self._canvas = canvas
        self._view = View(canvas, self.picture)
        self._state = "RUNNING"
        self._place = ""
        self._recent: dict[str, Trial] = {}

    def on_trial(self, what: str, trial: Trial) -> None:
        super().on_trial(what, trial)
        self._view.change()
        self._recent.pop(trial.trial_id, None)
        self._recent[trial.trial_id] = trial
        if len(self._recent) > 4 * ROWS:
            for trial_id in [i for i, t in self._recent.items() if t.finished][: 2 * ROWS]:
                del self._recent[trial_id]
        if what == "error":
            self.on_message(f"trial {_short(trial.trial_id)} failed: {trial.error}", "error")

    def on_message(self, text: str, level: str) -> None:
        self._canvas.say(f"shoal: {text}", style_of(level))

    def on_output(self, trial_id: str, lines: list[str]) -> None:
        self._canvas.print([f"[{_short(trial_id)}] {line}" for line in lines])

    def tick(self) -> float:
        return self._view.tick()

    def end(self, state: str, reason: str, place: str) -> None:
        self._state = state + (f": {reason}" if reason else "")
        self._place = place
        self._view.change()

    def close(self) -> None:
        self._view.close()

    def picture(self) -> Picture:
        """Return what is to be seen now."""
        trials = self._shown_trials()
        parameters, metrics = _columns(trials, self.machine)
        rows = [self._row(trial, parameters, metrics) for trial in trials]
        lines = [Cell(self.progress()), Cell(self.best(), "green"), Cell(self._place, "dim")]
        header = ("trial", "status", *parameters, "report", "time", *metrics)
        shown_lines = tuple(line for line in lines if line.text)
        return Picture(f"{self.name} · {self._state}", self._state, self.path, rows, header, shown_lines)

    def _row(self, trial: Trial, parameters: list[str], metrics: list[str]) -> tuple[Cell, ...]:
        best = self.machine is not None and trial is self.machine.best
        style = "bold green" if best else _STYLES.get(trial.status, "")
        row = trial.last_result
        cells = [_short(trial.trial_id), str(trial.status).lower()]
        cells += [brief(lookup(trial.config, name)) for name in parameters]
        cells += [str(trial.reports or ""), elapsed(row["time_total_s"]) if row else ""]
        cells += [brief(value) if (value := lookup(row, name)) is not None else "" for name in metrics]
        return tuple(Cell(text, style) for text in cells)

    def _shown_trials(self) -> list[Trial]:
        """Return those that run, then the best, then the newest others, in the order in which they were made."""
        recent = list(self._recent.values())[::-1]
        chosen = [trial for trial in recent if trial.status is TrialStatus.RUNNING]
        if self.machine and self.machine.best is not None and self.machine.best not in chosen:
            chosen.append(self.machine.best)
        chosen += [trial for trial in recent if trial not in chosen]
        return sorted(chosen[:ROWS], key=lambda trial: trial.trial_id)


_STYLES = {TrialStatus.ERROR: "red", TrialStatus.RUNNING: "cyan", TrialStatus.PAUSED: "yellow"}


class TrialDisplay(Display):
    """Passes on what a trial prints, and what is to be said of its run."""

    def __init__(self, search: SearchDisplay, trial_id: str):
        super().__init__((0,))
        self._search = search
        self._trial_id = trial_id

    def on_message(self, text: str, level: str) -> None:
        self._search.on_message(f"trial {_short(self._trial_id)}: {text}", level)

    def _show_lines(self, rank: int, lines: list[str]) -> None:
        if lines:
            self._search.on_output(self._trial_id, lines)


def make_search_display(verbose: int) -> SearchDisplay:
    """Return the display that fits where the driver's output goes."""
    if verbose <= 0:
        return SearchDisplay()
    place = canvas()
    return LineSearchDisplay() if place is None else LiveSearchDisplay(place)


def described(config: Mapping[str, Any]) -> str:
    """Return a configuration in one short line."""
    text = ", ".join(f"{key}={brief(value)}" for key, value in flat(config).items())
    return text if len(text) <= 100 else text[:97] + "..."


def _columns(trials: list[Trial], machine: Experiment | None) -> tuple[list[str], list[str]]:
    """Return the parameters that differ between these trials, and the metrics, the searched one first."""
    configs = [flat(trial.config) for trial in trials]
    names = dict.fromkeys(name for config in configs for name in config)
    varying = [name for name in names if len({repr(printable(config.get(name))) for config in configs}) > 1]
    metrics = dict.fromkeys([machine.metric] if machine and machine.metric else [])
    for trial in trials:
        metrics.update(dict.fromkeys(flat(shown(trial.last_result))))
    return (varying or list(names))[:COLUMNS], list(metrics)[:COLUMNS]


def _short(trial_id: str) -> str:
    return trial_id.rpartition("_")[2]
