"""Curves of metrics, in the terminal and as pictures."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shoal._core.errors import ShoalError
from shoal._core.plain_data import flat
from shoal._runtime import catalog
from shoal._runtime.display import HIDDEN
from shoal._runtime.resume import effective_rows
from shoal.cli import screen

Curves = dict[str, tuple[list[float], list[float]]]
MOST = 8  # curves in one picture: more of them nobody tells apart


def numeric(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the metrics that can be drawn."""
    return list(
        dict.fromkeys(key for row in rows for key, value in row.items() if key not in HIDDEN and screen.finite(value))
    )


def rows_of(place: catalog.Place) -> list[dict[str, Any]]:
    """Return the reports of a run, nested metrics side by side."""
    with catalog.records_at(place) as records:
        return [flat(row) for row in effective_rows(records)]


def _curve(rows: Sequence[Mapping[str, Any]], key: str) -> tuple[list[float], list[float]] | None:
    points = [(float(row["training_iteration"]), float(row[key])) for row in rows if screen.finite(row.get(key))]
    return ([x for x, _ in points], [y for _, y in points]) if points else None


def curves_of_run(rows: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> Curves:
    """Return a curve for each metric, by the number of the report."""
    curves: Curves = {}
    for key in keys:
        if curve := _curve(rows, key):
            curves[key] = curve
    if not curves:
        raise ShoalError(f"there is nothing to draw: {', '.join(keys) or 'nothing'} has no finite numbers")
    return curves


def curves_of_search(place: catalog.Place, key: str) -> Curves:
    """Return a curve for each of the best trials of a search."""
    one = catalog.overview(place, sized=False)
    curves: Curves = {}
    for trial in one.best_first[:MOST]:
        if not trial.directory:
            continue
        if curve := _curve(rows_of(place / trial.directory), key):
            curves[trial.directory] = curve
    if not curves:
        known = sorted({key for trial in one.trials for key in flat(trial.metrics) if key not in HIDDEN})
        raise ShoalError(
            f"no trial has reported {key!r} as a number; reported are: {', '.join(known) or 'nothing yet'}"
        )
    return curves


def in_terminal(curves: Curves, title: str) -> str:
    """Return a picture made of Braille characters."""
    import plotille

    figure = plotille.Figure()
    columns, lines = os.get_terminal_size() if os.isatty(1) else (100, 30)
    figure.width, figure.height = max(20, min(columns - 25, 120)), max(6, min(lines - 10, 20))
    figure.x_label, figure.y_label = "report", ""
    figure.color_mode = "names"
    figure.register_label_formatter(float, lambda value, chars, **_: f"{value:.4g}".rjust(chars))
    figure.with_colors = os.isatty(1)
    colors = ("cyan", "yellow", "green", "magenta", "red", "blue", "white", "bright_black")
    for number, (name, (xs, ys)) in enumerate(curves.items()):
        figure.plot(xs, ys, lc=colors[number % len(colors)] if figure.with_colors else None, label=name)
    if all(len(set(xs)) == 1 for xs, _ in curves.values()):
        figure.set_x_limits(min_=0, max_=max(xs[0] for xs, _ in curves.values()) + 1)
    return f"{title}\n{figure.show(legend=True)}"


def to_png(curves: Curves, title: str, path: Path) -> None:
    """Draw into a file, whose ending says of which kind it is."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ShoalError('pictures need matplotlib: pip install "shoal[tune]"') from error
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    for name, (xs, ys) in curves.items():
        axes.plot(xs, ys, label=name, marker="o" if len(xs) < 30 else None, markersize=3)
    axes.set_xlabel("report")
    axes.set_title(title)
    axes.grid(alpha=0.3)
    axes.legend()
    try:
        figure.savefig(path)
    except (ValueError, OSError) as error:
        raise ShoalError(f"{path} cannot be written: {error}") from error
