"""How the parts that ranks deliver become one checkpoint.

The ``n``-th reports of all ranks belong together. Which rank stores which file is decided before anything is copied:
a file that several ranks have is stored once, by the lowest of them. A checkpoint is whole once every rank has
delivered its ``n``-th report (or has finished, and so delivers no more) and every file that was given out is stored.

A replicated checkpoint is the same on every rank, so one part is enough: it is whole also when ranks are lost, and what
a lost rank was to store is given to another one that has it. Until then those that have it wait.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from shoal._core.messages import Digests, FileEntry, Report, Stored

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
    validation: dict[str, Any] | None = None


class _Pending:
    """One report's checkpoint in the making: what ranks have, what they are to store, what they have stored."""

    def __init__(self) -> None:
        self.wanted: set[str] = set()
        self.offered: dict[int, set[str]] = {}
        self.assigned: dict[int, set[str]] = {}
        self.stored: dict[int, dict[str, FileEntry]] = {}
        self.names: dict[int, str] = {}
        self.metrics: dict[int, dict[str, Any]] = {}
        self.claims: set[bool] = set()
        self.thanked: set[int] = set()
        self.elsewhere: dict[int, str] = {}
        self.validation: dict[int, dict[str, Any]] = {}
        self.impatient = False
        self.place = ""

    @property
    def declared(self) -> bool:
        """Whether the ranks say that each of them has the whole checkpoint."""
        return self.claims == {True}

    @property
    def replicated(self) -> bool:
        """Whether one part is enough: said, or else two ranks or more have files of the same names and none another."""
        same = len(self.offered) > 1 and len({frozenset(files) for files in self.offered.values()}) == 1
        return self.declared or (same and not self.claims)

    @property
    def covered(self) -> set[str]:
        """The files that are stored."""
        return {path for entries in self.stored.values() for path in entries}

    def done(self, rank: int) -> bool:
        """Whether a rank has stored what was given to it."""
        return rank in self.stored and self.assigned[rank] <= self.stored[rank].keys()

    def forget(self, rank: int) -> None:
        """A rank delivers nothing more for this; what it has stored already is good."""
        if not self.done(rank):
            for known in (self.offered, self.assigned, self.stored):
                known.pop(rank, None)

    def coverable(self, alive: set[int]) -> bool:
        """Whether these ranks, without the others, can make it whole."""
        able = self.offered if self.declared else self.assigned
        return self.wanted <= self.covered.union(*(files for rank, files in able.items() if rank in alive))

    def missing(self, lost: set[int]) -> dict[int, set[str]]:
        """Return what nobody is to store any more and which rank, of those that have it and wait, can."""
        given = set().union(*self.assigned.values())
        again: dict[int, set[str]] = {}
        for rank in sorted(self.assigned.keys() - lost):
            files = self.offered[rank] - given
            if files:
                again[rank] = files
                given |= files
        return again


class Assembly:
    """The checkpoints in the making of one attempt, whose first report follows report ``start``.

    ``renames`` says whether the storage makes a checkpoint visible by a rename. Where it does not, files are put where
    they stay, in a directory that no other attempt and no other report puts files in.
    """

    def __init__(self, attempt: int, world_size: int, start: int, renames: bool = True):
        self.attempt = attempt
        self._renames = renames
        self._delivered = [start] * world_size
        self._closed: set[int] = set()
        self._lost: set[int] = set()
        self._pending: dict[int, _Pending] = {}
        self._spoiled: set[int] = set()
        self._settled: set[int] = set()
        self._needless: list[tuple[int, int]] = []
        self._safe: list[tuple[int, int]] = []
        self._places: set[str] = set()
        self._rank0_metrics: dict[int, dict[str, Any]] = {}

    # ---- what ranks say ---------------------------------------------------------------------------------------------

    def report(self, rank: int, report: Report) -> None:
        """Take the next report of a rank."""
        self._delivered[rank] = report.n
        if rank == 0:
            self._remember(report)
        if report.files is None:
            return
        if report.n in self._settled:
            self._needless.append((rank, report.n))
            return
        pending = self._pending.setdefault(report.n, _Pending())
        pending.offered[rank] = {file.path for file in report.files}
        pending.wanted |= pending.offered[rank]
        pending.metrics[rank] = report.metrics
        if report.replicated is not None:
            pending.claims.add(report.replicated)
        if report.validation is not None:
            pending.validation[rank] = report.validation
        if report.name:
            pending.names[rank] = report.name
        if rank in self._lost and pending.declared:
            pending.forget(rank)  # its last words: it has it no more

    def stored(self, rank: int, message: Stored) -> None:
        """Take the word of a rank that its files of a report are whole in staging, or cannot be."""
        pending = self._pending.get(message.n)
        if pending is None or message.n in self._spoiled:
            self._safe.append((rank, message.n))  # there is nothing to be kept for any more
        elif not message.error:
            if rank not in pending.assigned:  # it had been taken for lost
                pending.offered[rank] = pending.assigned[rank] = {entry.path for entry in message.files}
            pending.stored.setdefault(rank, {}).update({entry.path: entry for entry in message.files})
            if message.place:
                pending.elsewhere[rank] = message.place
            self._thank(message.n, pending)
        elif pending.declared and len(pending.offered) > 1:
            pending.forget(rank)  # another rank has the same
        else:
            self._spoiled.add(message.n)  # it can never be whole, and must not hold up the next
            self._safe += [(other, message.n) for other in pending.offered if other != rank and pending.done(other)]

    def digests(self, rank: int, message: Digests) -> bool:
        """Take the digests of files that a rank stored without; false if the checkpoint is not in the making."""
        pending = self._pending.get(message.n)
        if pending is None or rank not in pending.stored:
            return False
        pending.stored[rank].update({entry.path: entry for entry in message.files})
        return True

    def close(self, rank: int) -> None:
        """A rank has finished: it delivers nothing more, and nobody waits for it."""
        self._closed.add(rank)

    def lose(self, rank: int) -> None:
        """A rank is gone before it finished: what it has not stored is lost."""
        self._lost.add(rank)
        for pending in self._pending.values():
            if pending.declared:
                pending.forget(rank)

    def hurry(self, n: int) -> None:
        """Do not wait any longer for lower ranks before files of report ``n`` are given out.

        A lower rank that comes later stores its files over the others' of the same name, once those are written.
        """
        if n in self._pending:
            self._pending[n].impatient = True

    # ---- what is known ----------------------------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """Whether no checkpoint is in the making, and no rank waits for an answer."""
        return not self._pending and not self._safe and not self._needless

    def delivered(self, rank: int) -> int:
        """Return the number of the last report of a rank."""
        return self._delivered[rank]

    def settled(self, n: int) -> bool:
        """Whether every rank has made its reports up to ``n``, and none of their checkpoints is in the making."""
        return self._everyone_delivered(n) and all(other > n or other in self._spoiled for other in self._pending)

    def waiting(self) -> dict[int, list[int]]:
        """Return, by report, the ranks whose files are not given out yet because a lower rank has not reported."""
        held = {n: sorted(set(p.offered) - set(p.assigned)) for n, p in self._pending.items()}
        return {n: ranks for n, ranks in held.items() if ranks}

    def worth_waiting_for(self, alive: Iterable[int]) -> bool:
        """Whether these ranks, without the others, are about to make a checkpoint whole."""
        living = set(alive)
        return any(self._about_to_be_whole(n, living) for n in self._pending if n not in self._spoiled)

    def _about_to_be_whole(self, n: int, living: set[int]) -> bool:
        pending = self._pending[n]
        reported = all(self._has_delivered(rank, n) for rank in living)
        enough = pending.declared or (pending.replicated and reported)
        return enough and bool(living & set(pending.offered)) and pending.coverable(living)

    # ---- what is to be done -----------------------------------------------------------------------------------------

    def assignments(self) -> list[Assignment]:
        """Give out the files whose rank can be decided now."""
        given = [Assignment(rank=rank, n=n, staging="", files=[]) for rank, n in self._needless]
        self._needless.clear()
        for n, pending in sorted(self._pending.items()):
            for rank in sorted(set(pending.offered) - set(pending.assigned)):
                if self._decidable(n, pending, rank):
                    lower = set().union(*(files for other, files in pending.offered.items() if other < rank))
                    files = set() if n in self._spoiled else pending.offered[rank] - lower
                    pending.assigned[rank] = files
                    given.append(self._assignment(rank, n, pending, files))
            if pending.declared:
                for rank, files in pending.missing(self._lost).items():
                    pending.assigned[rank] = pending.assigned[rank] | files
                    given.append(self._assignment(rank, n, pending, files))
        return given

    def whole(self) -> list[Whole]:
        """Return, and forget, the checkpoints that are complete, in the order of their reports."""
        ready: list[Whole] = []
        for n in sorted(self._pending):
            if n in self._spoiled:
                if self._everyone_delivered(n):
                    del self._pending[n]
                continue
            if not self._complete(n):
                if self._lost:
                    continue  # it may have been lost with them
                break
            pending = self._pending.pop(n)
            if self._lost:
                self._settled.add(n)  # a survivor may report it yet
                self._safe += [(rank, n) for rank in pending.offered if rank not in pending.thanked]
            ready.append(self._make_whole(n, pending))
        return ready

    def safe(self) -> list[tuple[int, int]]:
        """Return, and forget, which ranks need not keep their part of which report any longer."""
        safe, self._safe = self._safe, []
        return safe

    # ---- inside -----------------------------------------------------------------------------------------------------

    def _thank(self, n: int, pending: _Pending) -> None:
        """A rank's part is safe once it is stored, and a replica once the whole checkpoint is."""
        covered = pending.covered
        for rank, files in pending.offered.items():
            if rank not in pending.thanked and pending.done(rank) and (not pending.declared or files <= covered):
                pending.thanked.add(rank)
                self._safe.append((rank, n))

    def _assignment(self, rank: int, n: int, pending: _Pending, files: set[str]) -> Assignment:
        pending.place = pending.place or self._place(n, self._name(n, pending))
        return Assignment(rank=rank, n=n, staging=pending.place, files=sorted(files))

    def _place(self, n: int, name: str) -> str:
        """Return the directory that a checkpoint's files are put in, which no other attempt and report shares."""
        if self._renames:
            return f".staging-{self.attempt}-{n:06d}"
        place = name if self.attempt == 1 else f"{name}.attempt-{self.attempt}"
        if place in self._places:
            place = f"{name}.attempt-{self.attempt}-{n:06d}"
        self._places.add(place)
        return place

    def _name(self, n: int, pending: _Pending) -> str:
        return pending.names[min(pending.names)] if pending.names else f"checkpoint_{n:06d}"

    def _remember(self, report: Report) -> None:
        self._rank0_metrics[report.n] = report.metrics
        if len(self._rank0_metrics) > KEPT_METRICS:
            del self._rank0_metrics[next(iter(self._rank0_metrics))]

    def _has_delivered(self, rank: int, n: int) -> bool:
        return rank in self._closed or self._delivered[rank] >= n

    def _everyone_delivered(self, n: int) -> bool:
        return all(self._has_delivered(rank, n) for rank in range(len(self._delivered)))

    def _decidable(self, n: int, pending: _Pending, rank: int) -> bool:
        hurried = pending.impatient or (pending.declared and self._lost)
        if not hurried and not all(self._has_delivered(r, n) or r in self._lost for r in range(rank)):
            return False
        return not any(
            files & pending.offered[rank] and not pending.done(other)
            for other, files in pending.assigned.items()
            if other > rank
        )

    def _complete(self, n: int) -> bool:
        pending = self._pending[n]
        everyone = self._everyone_delivered(n)
        if everyone and pending.wanted <= pending.covered and all(pending.done(rank) for rank in pending.offered):
            return True
        if not self._lost or not pending.replicated or not pending.stored or not pending.wanted <= pending.covered:
            return False
        ranks = range(len(self._delivered))
        return pending.declared or all(self._has_delivered(rank, n) or rank in self._lost for rank in ranks)

    def _make_whole(self, n: int, pending: _Pending) -> Whole:
        files: dict[str, FileEntry] = {}
        for rank in sorted(pending.stored, reverse=True):
            files.update(pending.stored[rank])
        lowest = min(pending.metrics)
        name = self._name(n, pending) if self._renames else pending.place
        elsewhere = pending.elsewhere[min(pending.elsewhere)] if pending.elsewhere else ""
        return Whole(
            n=n,
            staging="" if elsewhere else pending.place,
            name=elsewhere or name,
            metrics=self._rank0_metrics.get(n, pending.metrics[lowest]),
            files=tuple(files[path] for path in sorted(files)),
            validation=pending.validation[min(pending.validation)] if pending.validation else None,
        )
