"""The checkpoints of a run: given out to ranks, assembled, committed, and deleted when retention lets them go."""

from __future__ import annotations

from shoal._core import commands as do
from shoal._core.group import Group, Worker
from shoal._core.messages import Committed, Report, Store, Stored
from shoal._core.outbox import Outbox
from shoal._core.records import CheckpointCommitted, CheckpointDeleted, CheckpointLost
from shoal._core.retention import CheckpointPolicy, CommittedCheckpoint, superfluous

HELD_SECONDS = 5.0  # how long a rank's files wait for the reports of lower ranks, which may have the same files


class Checkpoints:
    """What is to be done with checkpoints, as reports and stored parts arrive."""

    def __init__(self, policy: CheckpointPolicy, outbox: Outbox):
        self._policy = policy
        self._outbox = outbox
        self._committing: set[int] = set()

    @property
    def settled(self) -> bool:
        """Whether no commit is under way."""
        return not self._committing

    @property
    def latest(self) -> CommittedCheckpoint | None:
        """The newest committed checkpoint."""
        return max(self._outbox.history.checkpoints, key=lambda c: c.n, default=None)

    def inspect(self, full: bool) -> bool:
        """Have the newest checkpoint looked at before an attempt begins from it; false where there is none."""
        if self.latest is None:
            return False
        self._outbox.emit(do.Inspect(checkpoint=self.latest, full=full))
        return True

    def inspected(self, n: int, damage: str) -> None:
        """Take note of what is wrong with the newest checkpoint, if anything: the next older one takes its place."""
        latest = self.latest
        if not damage or latest is None or latest.n != n:
            return
        self._outbox.persist(CheckpointLost(n=n, name=latest.name, reason=damage))
        older = self.latest
        instead = f"{older.name} is used instead" if older else "there is no older one, so training begins anew"
        self._outbox.say(f"checkpoint {latest.name} is not sound: {damage}; {instead}", "warning")

    def reported(self, group: Group, worker: Worker, report: Report) -> None:
        """Take a report, with or without files."""
        group.assembly.report(worker.rank, report)
        self._advance(group)
        if report.files is not None and group.assembly.waiting():
            self._outbox.timer(f"held:{group.attempt}:{report.n}", HELD_SECONDS)

    def stored(self, group: Group, worker: Worker, message: Stored) -> None:
        """Take the word of a rank that its files are in staging, or cannot be."""
        if message.error:
            self._outbox.say(f"the checkpoint of report {message.n} was not stored: {message.error}", "warning")
        group.assembly.stored(worker.rank, message)
        self._advance(group)

    def closed(self, group: Group, worker: Worker) -> None:
        """A rank has finished and delivers no more."""
        group.assembly.close(worker.rank)
        self._advance(group)

    def held(self, group: Group, n: int) -> None:
        """Files of report ``n`` have waited for lower ranks long enough."""
        ranks = group.assembly.waiting().get(n)
        if ranks:
            self._outbox.say(
                f"rank {ranks[0]} has a checkpoint in report {n}, which lower ranks have not reached", "warning"
            )
            group.assembly.hurry(n)
            self._advance(group)

    def committed(self, group: Group, n: int) -> None:
        """A checkpoint is visible: let workers know, and let go of what is no longer kept."""
        if n not in self._committing:
            return
        self._committing.discard(n)
        history = self._outbox.history
        for checkpoint in history.checkpoints:
            if checkpoint.n == n:
                for worker in group.alive():
                    self._outbox.tell(group.attempt, worker.rank, Committed(n=n, path=checkpoint.name))
        for old in superfluous(history.checkpoints, self._policy):
            self._outbox.persist(CheckpointDeleted(n=old.n, name=old.name))
            self._outbox.emit(do.DeleteCheckpoint(name=old.name))

    def abandon(self) -> None:
        """The storage is broken: nothing that is under way will be committed."""
        self._committing.clear()

    def _advance(self, group: Group) -> None:
        if group.assembly.idle:
            return
        for given in group.assembly.assignments():
            self._outbox.tell(group.attempt, given.rank, Store(n=given.n, directory=given.staging, files=given.files))
        for whole in group.assembly.whole():
            self._committing.add(whole.n)
            self._outbox.persist(
                CheckpointCommitted(
                    n=whole.n,
                    attempt=group.attempt,
                    name=whole.name,
                    staging=whole.staging,
                    metrics=whole.metrics,
                    files=list(whole.files),
                )
            )
            self._outbox.emit(do.Commit(n=whole.n, staging=whole.staging, name=whole.name, files=whole.files))
