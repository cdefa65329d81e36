"""The files of one run while it is driven."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from shoal._core.records import Record
from shoal._runtime import attendance
from shoal._runtime.background import Background
from shoal._runtime.directory import RUN, Home
from shoal._runtime.files import write_json
from shoal._runtime.journal import Journal
from shoal._runtime.logs import Logs
from shoal._runtime.metrics import Metrics
from shoal._worker.remote import Remote, within

P = ParamSpec("P")
T = TypeVar("T")
FORMAT = 1


class RunFiles:
    """Opens the files in a run's directory. After the first write that fails, nothing more is written.

    Attributes
    ----------
    storage : Remote or None
        Where workers store and read checkpoints by themselves.
    broken : str
        Why the directory cannot be written to any more; empty while it can.
    durable : bool
        Whether every record that was persisted is where no death of this machine can take it.
    """

    def __init__(self, home: Home, metadata: dict[str, Any]):
        self.path = home.kept
        self.work = home.work
        self.metadata = json.dumps(metadata)
        self.broken = ""
        self.lease = home.lease
        self.checkpoints = home.checkpoints
        self.journal = Journal(f"{home.work}/journal.jsonl")
        self.metrics = Metrics(home.work)
        self.logs = Logs(home.work)
        self.background = Background(threaded=home.mirror is not None)
        self._beats = Background(threaded=home.mirror is not None)
        self._mirror = home.mirror
        self.storage = home.storage
        self._undurable = 0

    @property
    def mirrored(self) -> bool:
        """Whether files are copied to where the run is kept."""
        return self._mirror is not None

    @property
    def durable(self) -> bool:
        return not self._undurable or bool(self.broken)

    @property
    def preload(self) -> tuple[str, ...]:
        """What workers import that store checkpoints by themselves, for their host to import once."""
        if self.storage is None:
            return ()
        return (type(self.storage.filesystem).__module__.partition(".")[0], "tenacity", "upath")

    def guard(self, write: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        """Do a write; a failure is kept in :attr:`broken` and ends the run."""
        if self.broken:
            return None
        try:
            return write(*args, **kwargs)
        except OSError as error:
            self.broken = f"the run's directory {self.path} cannot be written to: {error.strerror or error}"
            return None

    def give_up(self) -> None:
        """Wait no longer for storage: the run is to end at once."""
        self.broken = self.broken or f"{self.path} did not answer while the run was to end at once"

    def later(self, write: Callable[[], T], then: Callable[[T], None] = lambda _: None) -> None:
        """Do a write of storage in its turn; ``then`` is told what it returned, unless it failed."""

        def follow(result: T | None) -> None:
            if result is not None:
                then(result)

        self.background.do(lambda: self.guard(write), follow)

    def persist(self, record: Record) -> None:
        """Append a record to the journal. What it justifies has to wait until it is durable."""
        self.guard(self.journal.append, record)
        if self._mirror is not None:
            self._undurable += 1
            self.background.do(partial(self.guard, self._mirror.append, "journal.jsonl"), self._made_durable)

    def _made_durable(self, _: Any) -> None:
        self._undurable -= 1

    def flush_metrics(self) -> None:
        """Have the rows of metrics on storage before what is done next there."""
        self.guard(self.metrics.flush)
        if self._mirror is not None:
            self.background.do(partial(self.guard, self._mirror.append, "metrics.jsonl"))

    def refresh(self) -> None:
        """Copy what people look at while the run goes on to where the run is kept."""
        if self._mirror is not None:
            self.background.do_once("refresh", partial(self.guard, self._mirror.refresh))

    def checkpoint(self, name: str) -> Path | Remote:
        """Return where workers read a checkpoint."""
        return within((self.storage or self.work) / "checkpoints", name)

    def beat(self) -> None:
        """Show that the driver lives, without waiting for storage work that takes long."""
        self._beats.do_once("beat", partial(self.guard, self.lease.beat))

    def take_requests(self, then: Callable[[list[dict[str, Any]]], None]) -> None:
        """Have ``then`` told of what people outside have asked for, without waiting for long storage work."""
        self._beats.do_once("requests", lambda: attendance.requests(self.path), then)

    def follow_up(self) -> None:
        """Do what follows from work of storage that is done."""
        self._beats.follow_up()
        self.background.follow_up()

    def wake_with(self, wake: Callable[[], None]) -> None:
        """Say whom to wake when work of storage is done, so that he follows it up."""
        self._beats.wake = self.background.wake = wake

    def describe(self, asked: dict[str, Any], config: Any, marker: str = RUN) -> None:
        """Write what was asked, and ``params.json``, for people and later drivers."""
        self.guard(write_json, f"{self.work}/params.json", config)
        self.guard(write_json, f"{self.work}/{marker}", {"format": FORMAT, **asked})
        if self._mirror is not None:
            self.guard(self._mirror.refresh)

    def keep_stacks(self, attempt: int, rank: int, text: str) -> None:
        """Write the stacks of a rank to ``stacks/``."""
        directory = self.work / "stacks"
        directory.mkdir(exist_ok=True)
        (directory / f"attempt_{attempt}_rank_{rank}.txt").write_text(text)

    def conclude(self, result: dict[str, Any]) -> None:
        """Write ``result.json`` and close the files."""
        self.background.close(wait=not self.broken)
        self._beats.close(wait=not self.broken)
        self.guard(self.metrics.close)
        self.guard(write_json, f"{self.work}/result.json", {"format": FORMAT, **result})
        if self.lease.interval:  # else it is a trial, of which its experiment has said how it is
            (self.work / attendance.STATUS).unlink(missing_ok=True)  # how it is now, result.json says
        self.journal.close()
        if self._mirror is not None:
            self.guard(self._mirror.finish)

    def kept(self, file: Path) -> str:
        """Return where people find a file of the run's directory."""
        return str(file) if isinstance(self.path, Path) else f"{self.path}/{file.relative_to(self.work).as_posix()}"
