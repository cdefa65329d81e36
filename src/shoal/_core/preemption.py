"""Workers that are about to be taken away: told to all ranks at the same call, then ended, and not counted as failures.

The ranks have to agree from which call on ``get_preemption_info()`` answers, or else some would save a checkpoint while
others go on into a collective. Each rank is asked how often it has called; from then on its next call waits for the
answer. The first call that no rank has made yet is the one, so every rank answers alike.
"""

from __future__ import annotations

from shoal._core.group import Group, Worker
from shoal._core.messages import AskCalls, PreemptAt
from shoal._core.outbox import Outbox

AGREE_SECONDS = 2.0  # how long a rank that does not answer, since it is gone or stopped, holds up the others


class Preemption:
    """The preemption of one attempt, if there is one."""

    def __init__(self, grace: float, outbox: Outbox):
        self._grace = grace
        self._outbox = outbox
        self._waiting: set[int] = set()
        self._calls: dict[int, int] = {}
        self._deadline_ms = 0
        self.ranks: set[int] = set()

    def notice(self, group: Group, worker: Worker, grace: float = 0.0) -> None:
        """A worker was told that it will be taken away, in so many seconds where that is known."""
        if not self.ranks:
            self._grace = max(self._grace, grace)
            self._outbox.say(f"rank {worker.rank} is being preempted; {self._grace:g} s are left", "warning")
            self._begin(group)
        self.ranks.add(worker.rank)

    def notice_for_all(self, group: Group, grace: float) -> None:
        """All workers will be taken away in so many seconds."""
        if not self.ranks:
            self._grace = grace
            self._begin(group)
        self.ranks |= {worker.rank for worker in group.workers}

    def _begin(self, group: Group) -> None:
        """Ask every rank how often it has called."""
        self._deadline_ms = round(1000 * (self._outbox.now + self._outbox.wall_offset + self._grace))
        self._waiting = {w.rank for w in group.alive()}
        for rank in sorted(self._waiting):
            self._outbox.tell(group.attempt, rank, AskCalls())
        self._outbox.timer(f"agree:{group.attempt}", AGREE_SECONDS)
        self._outbox.timer(f"preempted:{group.attempt}", self._grace)

    def calls(self, group: Group, rank: int, count: int) -> None:
        """A rank says how often it has asked."""
        self._calls[rank] = count
        if rank in self._waiting:
            self._waiting.discard(rank)
            if not self._waiting:
                self.agree(group)

    @property
    def left(self) -> float:
        """How long survivors may go on, in seconds, when those that were announced to go are gone.

        Until the deadline where the function asks for preemptions, since then it saves and returns by itself.
        """
        if not any(self._calls.values()):
            return 0.0
        return max(0.0, self._deadline_ms / 1000 - self._outbox.now - self._outbox.wall_offset)

    def agree(self, group: Group) -> None:
        """Tell all ranks from which call on the answer is given."""
        self._waiting.clear()
        first = max(self._calls.values(), default=0) + 1
        for worker in group.alive():
            message = PreemptAt(call=first, deadline_ms=self._deadline_ms, ranks=sorted(self.ranks))
            self._outbox.tell(group.attempt, worker.rank, message)
