"""The journal: what happened to a run, one JSON line a record, appended before what it justifies is done."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from shoal._core import jsonl
from shoal._core.records import AnyRecord, History, Record, fold
from shoal._core.search import AnySearchRecord
from shoal._runtime.files import open_append, write_all


class Journal:
    """Appends records to ``journal.jsonl``. A record that was torn by a death is ignored by readers."""

    def __init__(self, path: str | Path):
        self._file = open_append(path)

    def append(self, record: Record) -> None:
        """Write one record; raise ``OSError`` where it cannot be kept."""
        write_all(self._file, jsonl.encode(record) + b"\n")

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def read_journal(path: Path) -> list[AnyRecord]:
    """Return the records of a journal; a torn last line is ignored."""
    if not path.exists():
        return []
    return [msgspec.convert(line, AnyRecord) for line in jsonl.lines(path.read_bytes())]


def read_search(path: Path) -> list[AnySearchRecord]:
    """Return the records of an experiment's journal; a torn last line is ignored."""
    if not path.exists():
        return []
    return [msgspec.convert(line, AnySearchRecord) for line in jsonl.lines(path.read_bytes())]


def read_history(path: Path) -> History:
    """Return the state that a journal describes."""
    return fold(read_journal(path))
