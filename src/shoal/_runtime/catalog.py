"""Finds runs and searches where they are kept, and reads of each what there is to tell. Nothing in them is executed."""

from __future__ import annotations

import contextlib
import difflib
import os
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from shoal._core import jsonl
from shoal._core.errors import StorageError
from shoal._core.overview import Overview, SearchFold, of_run
from shoal._core.search import AnySearchRecord
from shoal._core.states import FINAL
from shoal._runtime.attendance import STATUS
from shoal._runtime.directory import EXPERIMENT, RUN, default_storage_path, has_run, storage_errors
from shoal._runtime.journal import read_journal
from shoal._runtime.lease import alive, holder_of
from shoal._runtime.mirror import fetch_records
from shoal._runtime.remote_lease import remote_holder
from shoal._runtime.resume import read_json
from shoal._runtime.searching import read_names
from shoal._worker.remote import Remote, locate, names_in

Place = Path | Remote
READERS = 8
TAIL = 1 << 16  # bytes at the end of a file of rows in which its last row is looked for


def kind_of(place: Place) -> str:
    """Return what lies at a place: ``"run"``, ``"trial"``, ``"search"``, or nothing (an empty string)."""
    if has_run(place, EXPERIMENT):
        return "search"
    if has_run(place, RUN):
        return "trial" if has_run(place.parent, EXPERIMENT) else "run"
    return ""


def root_of(storage: str | None) -> Place:
    """Return the directory in which runs are kept."""
    return _located(storage or default_storage_path())


def _located(path: str) -> Place:
    try:
        return locate(path)
    except ValueError as error:
        raise StorageError(str(error)) from error


def find(name: str, storage: str | None = None) -> Place:
    """Return where the run of a name lies, or the one at a path or URL; ``search/trial`` names a trial.

    Raises
    ------
    StorageError
        If there is none; the message names those that are meant, perhaps.
    """
    root = root_of(storage)
    candidates: list[Place] = [_located(name)] if "://" in name or os.path.exists(os.path.expanduser(name)) else []
    if "://" not in name and not os.path.isabs(name):
        candidates.append(root / name)
    for place in candidates:
        with storage_errors(place):
            if kind_of(place):
                return place
            if trial := _only(place, name):
                return trial
    known = names_in(root)
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5) or [n for n in known if name in n][:3]
    meant = f" Did you mean {', '.join(near)}?" if near else " shoal runs lists those that are there."
    raise StorageError(f"there is no run named {name!r} in {root}.{meant}")


def _only(place: Place, name: str) -> Place | None:
    """Return the trial of which only the number was given: ``search/00003``."""
    if "/" not in name or not has_run(place.parent, EXPERIMENT):
        return None
    found = [entry for entry in names_in(place.parent) if entry.startswith(place.name)]
    return place.parent / found[0] if len(found) == 1 else None


def listed(
    storage: str | None = None, *, sized: bool = True, known: dict[str, Overview] | None = None
) -> list[Overview]:
    """Return all runs and searches of a directory, the newest first. One that cannot be read is left out.

    Parameters
    ----------
    sized : bool
        Whether to look how much each takes.
    known : dict, optional
        What was found before, by name, of those that have ended; they are not read again. What is found joins it.
    """
    root = root_of(storage)
    names = [name for name in names_in(root) if not name.startswith(".")]
    known = {} if known is None else known
    with ThreadPoolExecutor(READERS, "shoal-catalog") as pool:
        found = list(pool.map(lambda name: _listed(root / name, sized, known.get(name)), names))
    known.clear()
    known.update({one.name: one for one in found if one is not None and one.state in FINAL})
    return sorted((one for one in found if one is not None), key=lambda one: one.started_at, reverse=True)


def _listed(place: Place, sized: bool, known: Overview | None) -> Overview | None:
    try:
        kind = kind_of(place)
        if known is not None and kind and driver_of(place, kind) is None:
            return known
        return overview(place, kind=kind, sized=sized) if kind else None
    except (OSError, ValueError, StorageError):  # it is being made or removed
        return None


@contextmanager
def records_at(place: Place) -> Iterator[Path]:
    """Yield a directory of this machine with what was written down of a run or a search."""
    if isinstance(place, Path):
        yield place
        return
    with tempfile.TemporaryDirectory(prefix="shoal-records-") as scratch, storage_errors(place):
        fetch_records(place, Path(scratch))
        yield Path(scratch)


def driver_of(place: Place, kind: str | None = None) -> dict[str, Any] | None:
    """Return who drives what lies at a place, if anybody does; a trial is driven by whoever drives its search."""
    if (kind or kind_of(place)) == "trial":
        place = place.parent
    with contextlib.suppress(OSError):
        holder = remote_holder(place) if isinstance(place, Remote) else holder_of(place)
        if holder and not holder.get("released") and alive(holder):
            return holder
    return None


@dataclass
class Followed:
    """What was read of a search already, for whoever looks at it again and again."""

    fold: SearchFold
    tail: Tail


def overview(
    place: Place, *, kind: str = "", sized: bool = True, at: Path | None = None, followed: Followed | None = None
) -> Overview:
    """Return what there is to tell of the run or the search at a place.

    Parameters
    ----------
    kind : str
        What :func:`kind_of` says of it, where that is known.
    sized : bool
        Whether to look how much it takes.
    at : Path, optional
        A copy of what was written down of it, where there is one.
    followed : Followed, optional
        What was read of a search already; what is new is added to it.
    """
    kind = kind or kind_of(place)
    driver = driver_of(place, kind)
    with nullcontext(at) if at is not None else records_at(place) as records:
        status = read_json(records / STATUS) or {}
        if kind == "trial":
            status = {"state": "RUNNING"}
        asked = read_json(records / (EXPERIMENT if kind == "search" else RUN)) or {}
        if kind == "search":
            followed = followed or Followed(search_fold(asked), Tail(records / "journal.jsonl"))
            for record in followed.tail.new():
                followed.fold.apply(msgspec.convert(record, AnySearchRecord))
            fields = followed.fold.fields(driver is not None, status)
            fields["function"] = str(asked.get("trainable", ""))
            _name_directories(place, fields["trials"])
        else:
            journal = read_journal(records / "journal.jsonl")
            fields = of_run(journal, asked, last_row(records / "metrics.jsonl"), driver is not None, status)
        return Overview(
            kind=kind,
            name=place.name if kind != "trial" else f"{place.parent.name}/{place.name}",
            path=str(place),
            config=read_json(records / "params.json"),
            asked=asked,
            size=size_of(place) if sized else 0,
            driver=driver,
            workers=status.get("workers", []) if driver else [],
            ranks=ranks_of(place),
            **fields,
        )


def search_fold(asked: dict[str, Any]) -> SearchFold:
    """Return what takes in the journal of a search that was asked for so."""
    config = asked.get("tune_config") or {}
    return SearchFold(asked.get("metric") or config.get("metric"), asked.get("mode") or config.get("mode"))


def _name_directories(place: Place, trials: list[Any]) -> None:
    """Say of trials in which directories they lie: those whose names begin with their numbers, else that say so."""
    by_number = {name.partition("_")[0]: name for name in names_in(place) if ".before-" not in name}
    for trial in trials:
        trial.directory = by_number.get(trial.trial_id.rpartition("_")[2], "")
    if isinstance(place, Path) and any(trial.started_at and not trial.directory for trial in trials):
        names = read_names(place)  # a person has named them; to look into each takes longer
        for trial in trials:
            trial.directory = trial.directory or names.get(trial.trial_id, "")


def status_of(place: Place) -> dict[str, Any]:
    """Return what the driver of a run has last written down of how it is; nothing if there is none."""
    return dict(read_json(place / STATUS) or {})


class Tail:
    """The values of a file of JSON lines that have been added since it was last looked at."""

    def __init__(self, path: Path):
        self._path = path
        self._read = 0

    def new(self) -> list[Any]:
        """Return them. A line whose end is not there yet is left for the next time."""
        try:
            with open(self._path, "rb") as file:
                file.seek(self._read)
                data = file.read()
        except FileNotFoundError:
            return []
        whole = data.rfind(b"\n") + 1
        self._read += whole
        return jsonl.lines(data[:whole])


def last_row(path: Path) -> dict[str, Any]:
    """Return the last row of a file of rows, without reading the others."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL))
            rows = [row for row in jsonl.lines(file.read()) if isinstance(row, dict)]
    except FileNotFoundError:
        return {}
    return dict(rows[-1]) if rows else {}


def size_of(place: Place) -> int:
    """Return how many bytes the files of a run take."""
    if isinstance(place, Remote):
        return sum(place.sizes().values())
    total = 0
    for folder, _, names in os.walk(place):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(folder, name)).st_size
    return total


def ranks_of(place: Place) -> list[int]:
    """Return the ranks whose output is kept."""
    names = [name.removeprefix("worker_").removesuffix(".log") for name in names_in(place / "logs")]
    return sorted(int(name) for name in names if name.isdigit())


def log_of(place: Place, rank: int, begin: int = 0) -> bytes:
    """Return the output of a rank, from a byte on.

    Raises
    ------
    StorageError
        If there is none; the message says of which ranks there is.
    """
    file = place / "logs" / f"worker_{rank}.log"
    try:
        if isinstance(file, Remote):
            return file.read()[begin:]
        with open(file, "rb") as log:
            log.seek(begin)
            return log.read()
    except FileNotFoundError:
        there = ", ".join(map(str, ranks_of(place))) or "none"
        raise StorageError(f"there is no output of rank {rank} in {place}; ranks with output: {there}") from None
