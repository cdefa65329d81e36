"""The files of one run while it is driven."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from shoal._runtime.files import write_json
from shoal._runtime.journal import Journal
from shoal._runtime.lease import Lease
from shoal._runtime.logs import Logs
from shoal._runtime.metrics import Metrics
from shoal._runtime.storage import LocalStorage

P = ParamSpec("P")
T = TypeVar("T")
FORMAT = 1


class RunFiles:
    """Opens the files in a run's directory. After the first write that fails, nothing more is written.

    Attributes
    ----------
    broken : str
        Why the directory cannot be written to any more; empty while it can.
    """

    def __init__(self, path: Path, metadata: dict[str, Any], lease: Lease):
        self.path = path
        self.metadata = json.dumps(metadata)
        self.broken = ""
        self.lease = lease
        self.journal = Journal(path / "journal.jsonl")
        self.metrics = Metrics(path)
        self.logs = Logs(path)
        self.checkpoints = LocalStorage(path / "checkpoints")

    def guard(self, write: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        """Do a write; a failure is kept in :attr:`broken` and ends the run."""
        if self.broken:
            return None
        try:
            return write(*args, **kwargs)
        except OSError as error:
            self.broken = f"the run's directory {self.path} cannot be written to: {error.strerror or error}"
            return None

    def describe(self, asked: dict[str, Any], config: Any) -> None:
        """Write ``run.json`` and ``params.json``: what was asked, for people and later runs."""
        self.guard(write_json, self.path / "run.json", {"format": FORMAT, **asked})
        self.guard(write_json, self.path / "params.json", config)

    def keep_stacks(self, attempt: int, rank: int, text: str) -> None:
        """Write the stacks of a rank to ``stacks/``."""
        directory = self.path / "stacks"
        directory.mkdir(exist_ok=True)
        (directory / f"attempt_{attempt}_rank_{rank}.txt").write_text(text)

    def conclude(self, result: dict[str, Any]) -> None:
        """Write ``result.json`` and close the files."""
        self.guard(self.metrics.close)
        self.guard(write_json, self.path / "result.json", {"format": FORMAT, **result})
        self.journal.close()
