"""How the parts that ranks deliver become one checkpoint.

The ``n``-th reports of all ranks belong together. Which rank stores which file is decided before anything is copied:
a file that several ranks have is stored once, by the lowest of them. A checkpoint is whole once every rank has
delivered its ``n``-th report (or has finished, and so delivers no more) and every file that was given out is stored.
"""

from __future__ import annotations

from typing import Any

import msgspec

from shoal._core.messages import FileEntry, Report, Stored

KEPT_METRICS = 1000  # reports of rank 0 that are remembered for ranks that lag behind


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank has to store of report ``n``."""

    rank: int
    n: int
    staging: str
    files: list[str]


class Whole(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint of which every part is stored."""

    n: int
    staging: str
    name: str
    metrics: dict[str, Any]
    files: tuple[FileEntry, ...]


class _Pending:
    def __init__(self) -> None:
        self.offered: dict[int, set[str]] = {}
        self.assigned: dict[int, set[str]] = {}
        self.stored: dict[int, list[FileEntry]] = {}
        self.names: dict[int, str] = {}
        self.metrics: dict[int, dict[str, Any]] = {}
        self.impatient = False


class Assembly:
    """The checkpoints in the making of one attempt, whose first report follows report ``start``."""

    def __init__(self, attempt: int, world_size: int, start: int):
        self.attempt = attempt
        self._delivered = [start] * world_size
        self._closed: set[int] = set()
        self._pending: dict[int, _Pending] = {}
        self._rank0_metrics: dict[int, dict[str, Any]] = {}

    def report(self, rank: int, report: Report) -> None:
        """Take the next report of a rank."""
        self._delivered[rank] = report.n
        if rank == 0:
            self._remember(report)
        if report.files is None:
            return
        pending = self._pending.setdefault(report.n, _Pending())
        pending.offered[rank] = {file.path for file in report.files}
        pending.metrics[rank] = report.metrics
        if report.name:
            pending.names[rank] = report.name

    @property
    def idle(self) -> bool:
        """Whether no checkpoint is in the making."""
        return not self._pending

    def delivered(self, rank: int) -> int:
        """Return the number of the last report of a rank."""
        return self._delivered[rank]

    def stored(self, rank: int, message: Stored) -> None:
        """Take the word of a rank that its files of a report are whole in staging."""
        if message.error:
            self._pending.pop(message.n, None)  # it can never be whole, and must not hold up the next
        elif message.n in self._pending:
            self._pending[message.n].stored[rank] = message.files

    def close(self, rank: int) -> None:
        """A rank has finished: it delivers nothing more, and nobody waits for it."""
        self._closed.add(rank)

    def hurry(self, n: int) -> None:
        """Do not wait any longer for lower ranks before files of report ``n`` are given out.

        A lower rank that comes later stores its files over the others' of the same name, once those are written.
        """
        if n in self._pending:
            self._pending[n].impatient = True

    def waiting(self) -> dict[int, list[int]]:
        """Return, by report, the ranks whose files are not given out yet because a lower rank has not reported."""
        held = {n: sorted(set(p.offered) - set(p.assigned)) for n, p in self._pending.items()}
        return {n: ranks for n, ranks in held.items() if ranks}

    def assignments(self) -> list[Assignment]:
        """Give out the files whose rank can be decided now."""
        given: list[Assignment] = []
        for n, pending in sorted(self._pending.items()):
            for rank in sorted(set(pending.offered) - set(pending.assigned)):
                if not self._decidable(n, pending, rank):
                    continue
                lower = set().union(*(files for other, files in pending.offered.items() if other < rank))
                files = pending.offered[rank] - lower
                pending.assigned[rank] = files
                given.append(Assignment(rank=rank, n=n, staging=self.staging(n), files=sorted(files)))
        return given

    def whole(self) -> list[Whole]:
        """Return, and forget, the checkpoints that are complete, in the order of their reports."""
        ready: list[Whole] = []
        for n in sorted(self._pending):
            if not self._complete(n):
                break
            ready.append(self._make_whole(n, self._pending.pop(n)))
        return ready

    def staging(self, n: int) -> str:
        """Return the name of the staging place, which no other attempt shares."""
        return f".staging-{self.attempt}-{n:06d}"

    def _remember(self, report: Report) -> None:
        self._rank0_metrics[report.n] = report.metrics
        if len(self._rank0_metrics) > KEPT_METRICS:
            del self._rank0_metrics[next(iter(self._rank0_metrics))]

    def _has_delivered(self, rank: int, n: int) -> bool:
        return rank in self._closed or self._delivered[rank] >= n

    def _decidable(self, n: int, pending: _Pending, rank: int) -> bool:
        if not (pending.impatient or all(self._has_delivered(lower, n) for lower in range(rank))):
            return False
        return not any(
            files & pending.offered[rank] and other not in pending.stored
            for other, files in pending.assigned.items()
            if other > rank
        )

    def _complete(self, n: int) -> bool:
        pending = self._pending[n]
        everyone = all(self._has_delivered(rank, n) for rank in range(len(self._delivered)))
        return everyone and set(pending.stored) == set(pending.offered)

    def _make_whole(self, n: int, pending: _Pending) -> Whole:
        files: dict[str, FileEntry] = {}
        for rank in sorted(pending.stored, reverse=True):
            files.update({entry.path: entry for entry in pending.stored[rank]})
        lowest = min(pending.metrics)
        return Whole(
            n=n,
            staging=self.staging(n),
            name=pending.names[min(pending.names)] if pending.names else f"checkpoint_{n:06d}",
            metrics=self._rank0_metrics.get(n, pending.metrics[lowest]),
            files=tuple(files[path] for path in sorted(files)),
        )
