"""The checkpoints of a run: given out to ranks, assembled, committed, and deleted when retention lets them go."""

from __future__ import annotations

from shoal._core import commands as do
from shoal._core import events as on
from shoal._core.group import Group, Worker
from shoal._core.messages import (
    AskCheckpoints,
    Committed,
    Digests,
    Kept,
    KeptCheckpoint,
    KeptList,
    Report,
    Store,
    Stored,
)
from shoal._core.names import stored_elsewhere
from shoal._core.outbox import Outbox
from shoal._core.records import CheckpointCommitted, CheckpointDeleted, CheckpointLost
from shoal._core.retention import CheckpointPolicy, CommittedCheckpoint, superfluous
from shoal._core.validations import Validations

HELD_SECONDS = 5.0  # how long a rank's files wait for the reports of lower ranks, which may have the same files


class Checkpoints:
    """What is to be done with checkpoints, as reports and stored parts arrive."""

    def __init__(self, policy: CheckpointPolicy, outbox: Outbox):
        self._policy = policy
        self._outbox = outbox
        self.validations = Validations(outbox)
        self._committing: set[int] = set()
        self._questions: list[tuple[Group, int, AskCheckpoints]] = []

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

    def digests(self, group: Group, worker: Worker, message: Digests) -> None:
        """Take the digests of files that a rank has stored without them."""
        if group.assembly.digests(worker.rank, message):
            return  # the checkpoint is still in the making
        for checkpoint in self._outbox.history.checkpoints:
            if checkpoint.n == message.n and checkpoint.attempt == group.attempt:
                self._outbox.emit(do.AddDigests(name=checkpoint.name, files=tuple(message.files)))

    def asked(self, group: Group, worker: Worker, message: AskCheckpoints) -> None:
        """A rank asks which checkpoints are kept, once those that it has reported are settled."""
        self._questions.append((group, worker.rank, message))
        self.answer()

    def answer(self) -> None:
        """Answer the questions that can be answered now."""
        open_questions = []
        for group, rank, question in self._questions:
            if not self._settled(group, question):
                open_questions.append((group, rank, question))
                continue
            kept = [
                KeptCheckpoint(name=c.name, metrics=c.metrics, status=c.status)
                for c in sorted(self._outbox.history.checkpoints, key=lambda c: c.n)
            ]
            self._outbox.tell(group.attempt, rank, KeptList(key=question.key, checkpoints=kept))
        self._questions = open_questions

    def _settled(self, group: Group, question: AskCheckpoints) -> bool:
        if any(n <= question.n for n in self._committing) or not group.assembly.settled(question.n):
            return False
        checkpoints = self._outbox.history.checkpoints
        return not (question.scored and any(c.n <= question.n and c.validation is not None for c in checkpoints))

    def validated(self, event: on.Validated) -> None:
        """Take what a validation has found."""
        if self.validations.ended(event):
            self._let_go()
            self.answer()
            self.validations.proceed()

    def closed(self, group: Group, worker: Worker) -> None:
        """A rank has finished and delivers no more."""
        group.assembly.close(worker.rank)
        self._advance(group)

    def lost(self, group: Group, worker: Worker) -> None:
        """A rank is gone before it has finished."""
        group.assembly.lose(worker.rank)
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
        self.validations.proceed()
        self._let_go()
        self.answer()

    def _let_go(self) -> None:
        """Remove the checkpoints that are no longer kept."""
        for old in superfluous(self._outbox.history.checkpoints, self._policy):
            self._outbox.persist(CheckpointDeleted(n=old.n, name=old.name))
            if not stored_elsewhere(old.name):  # what the user's code has stored is the user's to remove
                self._outbox.emit(do.DeleteCheckpoint(name=old.name))

    def abandon(self) -> None:
        """The storage is broken: nothing that is under way will be committed."""
        self._committing.clear()

    def _advance(self, group: Group) -> None:
        if group.assembly.idle:
            self.answer()
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
                    validation=whole.validation,
                )
            )
            self._outbox.emit(do.Commit(n=whole.n, staging=whole.staging, name=whole.name, files=whole.files))
        for rank, n in group.assembly.safe():
            self._outbox.tell(group.attempt, rank, Kept(n=n))
        self.answer()
