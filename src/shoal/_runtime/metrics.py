"""The metrics of a run on disk: JSON lines as the truth, a CSV file for people."""

from __future__ import annotations

import csv
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from shoal._core import jsonl
from shoal._runtime.files import open_append, write_all


class Metrics:
    """``metrics.jsonl``, one line a report of rank 0, and ``progress.csv`` beside it for people.

    Rows wait in memory until :meth:`flush`. A new key changes the header of the CSV file, so it is then written anew:
    a value never stands under another key's name.
    """

    REWRITE_INTERVAL = 2.0  # seconds; a run that invents a key in every report must not rewrite in every report

    def __init__(self, directory: Path):
        self._path = directory / "metrics.jsonl"
        self._csv_path = directory / "progress.csv"
        self._file = -1
        self._csv_file: TextIO | None = None
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
        elif not self._stale and self._csv_file is not None:
            self._write_rows(self._csv_file, self._rows)
            self._csv_file.flush()
            self._rows.clear()

    def close(self) -> None:
        """Write what waits and close the files."""
        self.flush()
        if self._stale:
            self._rewrite()
        if self._file >= 0:
            os.close(self._file)
        if self._csv_file is not None:
            self._csv_file.close()

    def _rewrite(self) -> None:
        if not self._csv_path.exists() and len(self._rows) == self._count:
            self._begin_csv()
            return
        rows = [_flatten(row) for row in jsonl.lines(self._path.read_bytes())]
        temporary = self._csv_path.with_name(".progress.csv.tmp")
        with open(temporary, "w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerow(self._columns)
            self._write_rows(file, rows)
        os.replace(temporary, self._csv_path)
        if self._csv_file is not None:
            self._csv_file.close()
        self._csv_file = open(self._csv_path, "a", newline="", encoding="utf-8")  # noqa: SIM115
        self._rows.clear()
        self._stale = False
        self._rewritten_at = time.monotonic()

    def _begin_csv(self) -> None:
        """Write the first rows, all of which are still in memory."""
        self._csv_file = open(self._csv_path, "a", newline="", encoding="utf-8")  # noqa: SIM115
        csv.writer(self._csv_file).writerow(self._columns)
        self._write_rows(self._csv_file, self._rows)
        self._csv_file.flush()
        self._rows.clear()
        self._stale = False

    def _write_rows(self, file: TextIO, rows: list[dict[str, Any]]) -> None:
        csv.writer(file).writerows([row.get(key, "") for key in self._columns] for row in rows)


def _flatten(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested metrics side by side, under paths such as ``eval/acc``."""
    flat: dict[str, Any] = {}
    for key, value in row.items():
        if isinstance(value, dict):
            flat.update({f"{key}/{inner}": deeper for inner, deeper in _flatten(value).items()})
        else:
            flat[key] = value
    return flat
