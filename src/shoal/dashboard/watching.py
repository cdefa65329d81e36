"""What the pages show of runs, read from their directories: each file once, and of one that grows what is new."""

from __future__ import annotations

import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from shoal._core.errors import StorageError
from shoal._core.overview import Overview
from shoal._core.plain_data import flat
from shoal._core.thinning import Curve
from shoal._runtime import catalog
from shoal._runtime.catalog import Followed, Place, Tail
from shoal._runtime.directory import EXPERIMENT
from shoal._runtime.display import HIDDEN
from shoal._runtime.mirror import fetch_records
from shoal._runtime.resume import read_json
from shoal._worker.remote import content, names_in

FETCH = 5.0  # seconds between two copies of what lies on storage that is not a disk
UNSHOWN = HIDDEN - {"data_wait_share"}  # which is worth a curve
MOST_CURVES = 30  # trials whose curves are drawn


class Watched:
    """One run, trial or search that somebody looks at."""

    def __init__(self, place: Place):
        self.place = place
        self.kind = catalog.kind_of(place)
        if not self.kind:
            raise StorageError(f"there is no run at {place}")
        self._lock = threading.Lock()
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        self._fetched_at = 0.0
        self._followed: Followed | None = None
        self._rows = Tail(self._records() / "metrics.jsonl")
        self._curves: dict[str, Curve] = {}
        self._count = 0

    def _records(self) -> Path:
        """Return a directory of this machine with what was written down, as new as can be had."""
        if isinstance(self.place, Path):
            return self.place
        if self._scratch is None:
            self._scratch = tempfile.TemporaryDirectory(prefix="shoal-dashboard-", ignore_cleanup_errors=True)
        if time.monotonic() - self._fetched_at > FETCH:
            fetch_records(self.place, Path(self._scratch.name))
            self._fetched_at = time.monotonic()
        return Path(self._scratch.name)

    def overview(self, sized: bool = False) -> Overview:
        """Return what there is to tell of it."""
        with self._lock:
            records = self._records()
            if self.kind == "search" and self._followed is None:
                asked = read_json(records / EXPERIMENT) or {}
                self._followed = Followed(catalog.search_fold(asked), Tail(records / "journal.jsonl"))
            return catalog.overview(self.place, sized=sized, at=records, followed=self._followed)

    def curves(self) -> tuple[int, dict[str, list[tuple[float, float]]]]:
        """Return how many rows there are, and a curve of each metric by the number of the report."""
        with self._lock:
            self._records()
            for row in self._rows.new():
                self._add(row)
            return self._count, {key: curve.points() for key, curve in self._curves.items()}

    def _add(self, row: dict[str, Any]) -> None:
        self._count += 1
        x = float(row.get("training_iteration", self._count))
        for key, value in flat(row).items():
            if key not in UNSHOWN and type(value) in (int, float) and value - value == 0:  # neither NaN nor infinite
                curve = self._curves.get(key)
                if curve is None:
                    curve = self._curves[key] = Curve()
                curve.add(x, float(value))


class Watch:
    """All that is kept in one storage.

    Parameters
    ----------
    storage : str or None
        Where runs are kept.
    """

    def __init__(self, storage: str | None):
        self.storage = storage
        self.root = catalog.root_of(storage)
        self._watched: dict[str, Watched] = {}
        self._ended: dict[str, Overview] = {}
        self._lock = threading.Lock()

    def listed(self) -> list[Overview]:
        """Return all runs and searches, the newest first. Those that have ended are read once."""
        return catalog.listed(self.storage, sized=False, known=self._ended)

    def __getitem__(self, name: str) -> Watched:
        """Return a run by its name, a trial by ``search/trial``.

        Raises
        ------
        StorageError
            If there is none. Nothing outside of the storage is ever looked at.
        """
        parts = name.split("/")
        if not 1 <= len(parts) <= 2 or any(not part or part.startswith(".") or "\\" in part for part in parts):
            raise StorageError(f"{name!r} is not the name of a run")
        with self._lock:
            if name not in self._watched:
                place = self.root
                for part in parts:
                    place = place / part
                self._watched[name] = Watched(place)
            return self._watched[name]

    def trial_curves(self, name: str, metric: str) -> dict[str, list[tuple[float, float]]]:
        """Return a curve of each of the best trials of a search."""
        one = self[name].overview()
        found = {}
        for trial in one.best_first[:MOST_CURVES]:
            if trial.directory and catalog.kind_of(self[name].place / trial.directory):
                _, curves = self[f"{name}/{trial.directory}"].curves()
                if metric in curves:
                    found[trial.directory] = curves[metric]
        return found


def log_lines(place: Place, rank: int, count: int, search: str) -> dict[str, Any]:
    """Return the last lines that a rank has written, or the last of those with some words in them."""
    data = catalog.log_of(place, rank)
    lines = data.decode("utf-8", "replace").splitlines()
    if search:
        wanted = search.casefold()
        lines = [line for line in lines if wanted in line.casefold()]
    shown = [line.rstrip("\r").rsplit("\r", 1)[-1] for line in lines[-count:]]
    return {"lines": shown, "total": len(lines), "bytes": len(data)}


def kept_stacks(place: Place) -> list[dict[str, Any]]:
    """Return the stacks that were kept of a run."""
    found = []
    for name in names_in(place / "stacks"):
        file = place / "stacks" / name
        text = content(file).decode()
        at = file.stat().st_mtime if isinstance(file, Path) else None
        found.append({"name": name.removesuffix(".txt").replace("_", " "), "text": text, "at": at})
    return found
