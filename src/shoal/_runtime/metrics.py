"""The metrics of a run on disk: JSON lines as the truth, a CSV file for people."""

from __future__ import annotations

import csv
import io
import math
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from shoal._core import jsonl
from shoal._runtime.files import open_append, write_all

APPEND = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC


class Metrics:
    """``metrics.jsonl``, one line a report of rank 0, and ``progress.csv`` beside it for people.

    Rows wait in memory until :meth:`flush`. A new key changes the header of the CSV file, so it is then written anew:
    a value never stands under another key's name.
    """

    REWRITE_INTERVAL = 2.0  # seconds; a run that invents a key in every report must not rewrite in every report

    def __init__(self, directory: Path):
        self._path = f"{directory}/metrics.jsonl"
        self._csv_path = f"{directory}/progress.csv"
        self._file = self._csv_file = -1
        self._columns: dict[str, None] = {}
        self._lines: list[bytes] = []
        self._rows: list[dict[str, Any]] = []
        self._count = 0
        self._stale = False
        self._rewritten_at = -math.inf

    def add(self, row: Mapping[str, Any]) -> None:
        """Take one row."""
        self._count += 1
        self._lines.append(jsonl.encode(row))
        flat = _flatten(row)
        if not flat.keys() <= self._columns.keys():
            self._columns.update(dict.fromkeys(flat))
            self._stale = True
        self._rows.append(flat)

    def flush(self) -> None:
        """Write what waits."""
        if not self._lines:
            return
        if self._file < 0:
            self._file = open_append(self._path)
        write_all(self._file, b"\n".join(self._lines) + b"\n")
        self._lines.clear()
        if self._stale and time.monotonic() - self._rewritten_at > self.REWRITE_INTERVAL:
            self._rewrite()
        elif not self._stale and self._csv_file >= 0:
            write_all(self._csv_file, self._text(self._rows))
            self._rows.clear()

    def close(self) -> None:
        """Write what waits and close the files."""
        self.flush()
        if self._stale:
            self._rewrite()
        for file in (self._file, self._csv_file):
            if file >= 0:
                os.close(file)

    def _rewrite(self) -> None:
        if len(self._rows) != self._count or not self._began():
            rows = [_flatten(row) for row in jsonl.lines(Path(self._path).read_bytes())]
            temporary = Path(self._csv_path).with_name(".progress.csv.tmp")
            temporary.write_bytes(self._header() + self._text(rows))
            os.replace(temporary, self._csv_path)
            if self._csv_file >= 0:
                os.close(self._csv_file)
            self._csv_file = os.open(self._csv_path, APPEND)
            self._rewritten_at = time.monotonic()
        self._rows.clear()
        self._stale = False

    def _began(self) -> bool:
        """Write the first rows, all of which are still in memory, unless there is a file."""
        try:
            self._csv_file = os.open(self._csv_path, APPEND | os.O_CREAT | os.O_EXCL, 0o666)
        except FileExistsError:
            return False
        write_all(self._csv_file, self._header() + self._text(self._rows))
        return True

    def _header(self) -> bytes:
        return _csv([self._columns])

    def _text(self, rows: list[dict[str, Any]]) -> bytes:
        return _csv([row.get(key, "") for key in self._columns] for row in rows)


def _csv(rows: Iterable[Iterable[Any]]) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text).writerows(rows)
    return text.getvalue().encode()


def _flatten(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested metrics side by side, under paths such as ``eval/acc``."""
    flat: dict[str, Any] = {}
    for key, value in row.items():
        if isinstance(value, dict):
            flat.update({f"{key}/{inner}": deeper for inner, deeper in _flatten(value).items()})
        else:
            flat[key] = value
    return flat
