"""Committed checkpoints that are scored while training goes on: one at a time, in the order of their reports."""

from __future__ import annotations

from shoal._core import commands as do
from shoal._core import events as on
from shoal._core.outbox import Outbox
from shoal._core.records import CheckpointValidated


class Validations:
    """Which checkpoint is being scored. Those that wait are in the history, where the next driver finds them, too."""

    def __init__(self, outbox: Outbox):
        self._outbox = outbox
        self._running: int | None = None

    @property
    def idle(self) -> bool:
        """Whether nothing is being scored, and nothing waits."""
        return self._running is None and not self._waiting()

    def proceed(self) -> None:
        """Have the next one scored, if none is."""
        waiting = self._waiting()
        if self._running is None and waiting:
            n, name, task = waiting[0]
            self._running = n
            self._outbox.emit(do.Validate(n=n, name=name, task=task))

    def ended(self, event: on.Validated) -> bool:
        """Take what a validation has found; false if that is not the one that was asked for."""
        if event.n != self._running:
            return False
        self._running = None
        if any(c.n == event.n for c in self._outbox.history.checkpoints):
            self._outbox.persist(CheckpointValidated(n=event.n, metrics=event.metrics, error=event.error))
        if event.error:
            self._outbox.say(f"the checkpoint of report {event.n} could not be scored: {event.error}", "warning")
        return True

    def _waiting(self) -> list[tuple[int, str, dict[str, object]]]:
        checkpoints = sorted(self._outbox.history.checkpoints, key=lambda c: c.n)
        return [(c.n, c.name, c.validation) for c in checkpoints if c.validation is not None and c.n != self._running]
