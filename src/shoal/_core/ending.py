"""How a group of workers is brought to its end: asked at a common report, waved off, given a grace, killed."""

from __future__ import annotations

import math

from shoal._core import commands as do
from shoal._core.failure import Failure, looks_like_a_consequence
from shoal._core.group import Group, Phase
from shoal._core.messages import Farewell, StopAt
from shoal._core.outbox import Outbox

# How long, in seconds, the other ranks may still say what they saw after a failure. A broken collective is answered
# by everyone at once, and its cause may be the last to arrive; a process that died or raised is a cause by itself.
GRACE_AFTER_BROKEN_COLLECTIVE = 0.5
GRACE_AFTER_EXCEPTION = 0.1
GRACE_AFTER_DEATH = 0.0
# How long ranks may go on after the first one left at a stop request; one may wait for it in a collective.
GRACE_AFTER_STOP = 3.0
# How far ahead of now, in seconds, the report lies at which all ranks stop: reports wait 0.05 s in a worker.
STOP_LEAD = 0.15
# After how long, in seconds, a process that SIGKILL does not end is waited for no more: it hangs in the kernel.
KILL_LIMIT = 15.0
# How long survivors may take to store a checkpoint that needs none of the lost ranks, and how often that is looked at.
STORE_LIMIT = 60.0
STORE_LOOK = 0.05


class Ending:
    """The end of one attempt."""

    def __init__(self, outbox: Outbox):
        self._outbox = outbox
        self._until = math.inf
        self._extended_since = math.inf

    def ask(self, group: Group, at: int | None = None) -> None:
        """Have all ranks stop at one report, so that none waits in a collective for another that has left."""
        n = group.next_common_report(STOP_LEAD) if at is None else at
        for worker in group.alive():
            self._outbox.tell(group.attempt, worker.rank, StopAt(n=n))

    def grace(self, group: Group, seconds: float) -> None:
        """Kill what is left of the group after this time, or earlier where that was said before."""
        if self._outbox.now + seconds < self._until:
            self._until = self._outbox.now + seconds
            self._outbox.emit(do.SetTimer(name=f"grace:{group.attempt}", at=self._until))

    def extend(self, group: Group) -> bool:
        """Look again in a moment whether survivors have stored their checkpoint; false when that took too long."""
        self._extended_since = min(self._extended_since, self._outbox.now)
        if self._outbox.now - self._extended_since > STORE_LIMIT:
            return False
        self._until = math.inf
        self.grace(group, STORE_LOOK)
        return True

    def wave_off(self, group: Group) -> None:
        """Let the workers go that have finished; until now others might have needed them."""
        for worker in group.alive():
            if worker.phase is Phase.FINISHED:
                self._outbox.tell(group.attempt, worker.rank, Farewell())

    def kill(self, group: Group) -> None:
        """End every worker now."""
        alive = group.alive()
        for worker in alive:
            worker.killed = worker.killed or not worker.over
        if alive:
            self._outbox.emit(do.Kill(attempt=group.attempt, ranks=tuple(worker.rank for worker in alive)))
            self._outbox.timer(f"unkilled:{group.attempt}", KILL_LIMIT)


def grace_after(failure: Failure) -> float:
    """Return how long the other ranks may still say what they saw."""
    if failure.error is None:
        return GRACE_AFTER_DEATH
    return GRACE_AFTER_BROKEN_COLLECTIVE if looks_like_a_consequence(failure) else GRACE_AFTER_EXCEPTION
