"""A group that makes no progress: found by the silence of its slowest rank, and asked for its stacks before it ends."""

from __future__ import annotations

from shoal._core import commands as do
from shoal._core.group import Group, Worker
from shoal._core.messages import DumpStacks
from shoal._core.outbox import Outbox

STACKS_SECONDS = 3.0  # how long ranks have to answer; one that is stopped or stuck in a system call never does


class Hang:
    """Watches the reports of one group at a time. Without a limit it watches nothing."""

    def __init__(self, limit: float | None, outbox: Outbox):
        self._limit = limit
        self._outbox = outbox
        self._asked: set[int] | None = None

    def watch(self, group: Group) -> None:
        """The first rank trains from now on."""
        self._asked = None
        if self._limit is not None:
            for worker in group.workers:
                worker.heard_at = self._outbox.now
            self._outbox.timer(f"progress:{group.attempt}", self._limit)

    def check(self, group: Group) -> None:
        """The time of the slowest rank may be up: if so, ask all ranks what they are doing."""
        if self._limit is None or self._asked is not None:
            return
        last = min((w.heard_at for w in group.workers if not w.over), default=self._outbox.now)
        left = last + self._limit - self._outbox.now
        if left > 1e-6:
            self._outbox.timer(f"progress:{group.attempt}", left)
            return
        self._asked = {worker.rank for worker in group.alive()}
        ranks = ", ".join(str(worker.rank) for worker in self.stuck(group))
        self._outbox.say(
            f"no report of rank {ranks} for {self._limit:g} s; asking all ranks for their stacks", "warning"
        )
        for rank in sorted(self._asked):
            self._outbox.tell(group.attempt, rank, DumpStacks())
        self._outbox.timer(f"stacks:{group.attempt}", STACKS_SECONDS)

    def answered(self, group: Group, worker: Worker, text: str) -> bool:
        """Keep the stacks of a rank; true if it was the last one."""
        self._outbox.emit(do.KeepStacks(attempt=group.attempt, rank=worker.rank, text=text))
        if self._asked is None:
            return False
        self._asked.discard(worker.rank)
        return not self._asked

    def stuck(self, group: Group) -> list[Worker]:
        """Return the ranks that have not reported in time."""
        limit = self._limit or 0.0
        return [
            worker for worker in group.workers if not worker.over and self._outbox.now - worker.heard_at >= limit - 1e-6
        ]

    def conclude(self, group: Group) -> str:
        """Return what to say of the ranks that are stuck; empty if nobody was asked."""
        if self._asked is None:
            return ""
        for rank in sorted(self._asked):
            text = "(no answer: the process is stopped, or its interpreter is held by native code)\n"
            self._outbox.emit(do.KeepStacks(attempt=group.attempt, rank=rank, text=text))
        return f"hung: it made no report for {self._limit:g} s (progress_timeout_s); stacks of all ranks are in stacks/"
