"""What every rank is doing right now, for somebody who asks: answers are kept, and nothing else changes."""

from __future__ import annotations

from shoal._core import commands as do
from shoal._core.group import Group
from shoal._core.messages import DumpStacks
from shoal._core.outbox import Outbox


class Inquiry:
    """Asks the ranks of a group and their hosts for stacks, once for each person who wants to know."""

    def __init__(self, outbox: Outbox):
        self._outbox = outbox
        self._asked: set[int] = set()
        self._python: dict[int, str] = {}
        self._native: dict[int, str] = {}

    def ask(self, group: Group) -> None:
        """Ask all ranks whose process is there what they are doing, and their hosts, which also see native code."""
        self._python, self._native = {}, {}
        self._asked.update(worker.rank for worker in group.alive())
        ask(group, self._outbox)

    def answered(self, group: Group, rank: int, text: str, *, native: bool = False) -> None:
        """Keep what a rank or its host says, if somebody has asked."""
        if rank not in self._asked or not text:
            return
        (self._native if native else self._python)[rank] = text
        whole = together(self._python.get(rank), self._native.get(rank))
        self._outbox.emit(do.KeepStacks(attempt=group.attempt, rank=rank, text=whole, quiet=True))


def ask(group: Group, outbox: Outbox) -> dict[int, int]:
    """Ask all ranks whose process is there what they are doing, and their hosts; return the processes by rank."""
    for worker in group.alive():
        outbox.tell(group.attempt, worker.rank, DumpStacks())
    pids = {worker.rank: worker.pid for worker in group.alive() if worker.pid}
    outbox.emit(do.DumpNativeStacks(attempt=group.attempt, pids=pids))
    return pids


def together(python: str | None, native: str | None) -> str:
    """Return what a rank says of itself and what its host has seen of it, as one text."""
    missing = "(no answer: the process is stopped, or its interpreter is held by native code)\n"
    return (python or missing) + (f"\nNative stacks, by py-spy:\n{native}" if native else "")
