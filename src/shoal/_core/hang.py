"""A group that makes no progress: found by the silence of its slowest rank, and asked for its stacks before it ends."""

from __future__ import annotations

from shoal._core import commands as do
from shoal._core.group import Group, Worker
from shoal._core.outbox import Outbox
from shoal._core.stacks import ask, together

STACKS_SECONDS = 3.0  # how long ranks have to answer; one that is stopped or stuck in a system call never does
NATIVE_SECONDS = 12.0  # how much longer hosts have that read native stacks: the symbols of torch take them seconds


class Hang:
    """Watches the reports of one group at a time. Without a limit it watches nothing."""

    def __init__(self, limit: float | None, outbox: Outbox):
        self._limit = limit
        self._outbox = outbox
        self._python: dict[int, str | None] = {}
        self._native: dict[int, str | None] = {}
        self._waited_for_native = False

    def watch(self, group: Group) -> None:
        """The first rank trains from now on."""
        self._python, self._native = {}, {}
        if self._limit is not None:
            for worker in group.workers:
                worker.heard_at = self._outbox.now
            self._outbox.timer(f"progress:{group.attempt}", self._limit)

    def check(self, group: Group) -> None:
        """The time of the slowest rank may be up: if so, ask all ranks what they are doing, and their hosts, too."""
        if self._limit is None or self._python:
            return
        last = min((w.heard_at for w in group.workers if not w.over), default=self._outbox.now)
        left = last + self._limit - self._outbox.now
        if left > 1e-6:
            self._outbox.timer(f"progress:{group.attempt}", left)
            return
        ranks = ", ".join(str(worker.rank) for worker in self.stuck(group))
        self._outbox.say(
            f"no report of rank {ranks} for {self._limit:g} s; asking all ranks for their stacks", "warning"
        )
        self._python = dict.fromkeys(worker.rank for worker in group.alive())
        self._native = dict.fromkeys(ask(group, self._outbox))
        self._waited_for_native = False
        self._outbox.timer(f"stacks:{group.attempt}", STACKS_SECONDS)

    def answered(self, group: Group, rank: int, text: str, *, native: bool = False) -> bool:
        """Take the stacks of a rank; true if nothing more is to come."""
        answers = self._native if native else self._python
        if answers.get(rank, "") is not None:
            return False  # nobody asked, or the answer is there
        answers[rank] = text
        return all(text is not None for text in (*self._python.values(), *self._native.values()))

    def wait_for_native(self, group: Group) -> bool:
        """Whether hosts that are still reading stacks are to be waited for, once."""
        if self._waited_for_native or all(text is not None for text in self._native.values()):
            return False
        self._waited_for_native = True
        self._outbox.timer(f"stacks:{group.attempt}", NATIVE_SECONDS)
        return True

    def stuck(self, group: Group) -> list[Worker]:
        """Return the ranks that have not reported in time."""
        limit = self._limit or 0.0
        return [
            worker for worker in group.workers if not worker.over and self._outbox.now - worker.heard_at >= limit - 1e-6
        ]

    def conclude(self, group: Group) -> str:
        """Keep what was answered, and return what to say of the ranks that are stuck; empty if nobody was asked."""
        if not self._python:
            return ""
        for rank, text in sorted(self._python.items()):
            whole = together(text, self._native.get(rank))
            self._outbox.emit(do.KeepStacks(attempt=group.attempt, rank=rank, text=whole))
        return f"hung: it made no report for {self._limit:g} s (progress_timeout_s); stacks of all ranks are in stacks/"
