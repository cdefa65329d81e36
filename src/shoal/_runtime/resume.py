"""What an earlier driver left of a run, and what has changed since."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shoal._core import jsonl
from shoal._core.records import History
from shoal._core.states import RunState
from shoal._runtime.directory import has_run, records_of
from shoal._runtime.journal import read_history
from shoal._worker.remote import Remote, content

# What differs from start to start without a person having changed anything.
PASSING = frozenset({"started_at", "format", "name", "command"})


@dataclass(frozen=True)
class Earlier:
    """The state in which a run was left; empty for a new one."""

    history: History = field(default_factory=History)
    last_row: dict[str, Any] = field(default_factory=dict)
    asked: dict[str, Any] = field(default_factory=dict)
    config: Any = None


def read_earlier(path: Path) -> Earlier:
    """Return what is known of the run in a directory."""
    history = read_history(path / "journal.jsonl")
    rows = effective_rows(path)
    asked, config = read_json(path / "run.json"), read_json(path / "params.json")
    return Earlier(history, rows[-1] if rows else {}, asked or {}, config)


def finished(place: Path | Remote) -> bool:
    """Whether there is a run at a place that ran to its end, so that there is nothing to go on with."""
    if not has_run(place):
        return False
    with records_of(place) as records:
        ended = read_history(records / "journal.jsonl").ended
    return ended is not None and ended.state == RunState.FINISHED


def changes(earlier: Earlier, asked: Mapping[str, Any], config: Any) -> list[str]:
    """Return, in words, what was asked differently this time."""
    if not earlier.asked:
        return []
    before = {**_flat(earlier.asked), **_flat(earlier.config, "train_loop_config")}
    after = {**_flat(asked), **_flat(config, "train_loop_config")}
    return [
        f"{key} was {before.get(key, 'not set')!r}, is {after.get(key, 'not set')!r}"
        for key in sorted(before.keys() | after.keys())
        if key.partition(".")[0] not in PASSING and before.get(key) != after.get(key)
    ]


def effective_rows(path: Path) -> list[dict[str, Any]]:
    """Return the reports of a run in order, without those that a later attempt made again."""
    file = path / "metrics.jsonl"
    effective: list[dict[str, Any]] = []
    for row in jsonl.lines(file.read_bytes()) if file.exists() else []:
        while effective and effective[-1]["training_iteration"] >= row["training_iteration"]:
            effective.pop()
        effective.append(row)
    return effective


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    return dict(_leaves(jsonl.decode(jsonl.encode(value)), prefix))


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key}" if path else str(key))
    else:
        yield path, value


def read_json(path: Path | Remote) -> Any:
    """Return what a JSON file holds; ``None`` if there is none, or half of one."""
    try:
        return jsonl.decode(content(path))
    except (OSError, ValueError):
        return None
