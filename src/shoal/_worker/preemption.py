"""The worker's side of the agreement from which call on all ranks are told of a preemption."""

from __future__ import annotations

import threading

from shoal._core.messages import PreemptAt

PATIENCE = 10.0  # seconds; a supervisor that has asked and does not answer is gone


class PreemptionCalls:
    """Counts the calls of the function, and answers those from the agreed one on."""

    def __init__(self) -> None:
        self.informed = False
        self._changed = threading.Condition()
        self._count = 0
        self._frozen_after: int | None = None
        self._answer: PreemptAt | None = None

    def call(self) -> PreemptAt | None:
        """Return the answer to this call. Waits while the ranks are agreeing whether it is the first to be told."""
        with self._changed:
            self._count += 1
            mine = self._count
            self._changed.wait_for(lambda: self._answer is not None or not self._open(mine), PATIENCE)
            if self._answer is None or mine < self._answer.call:
                return None
            self.informed = True
            return self._answer

    def freeze(self) -> int:
        """Return how many calls there were; later ones wait for :meth:`agreed`."""
        with self._changed:
            self._frozen_after = self._count
            return self._count

    def agreed(self, answer: PreemptAt) -> None:
        """The ranks have agreed."""
        with self._changed:
            self._answer = answer
            self._changed.notify_all()

    def _open(self, call: int) -> bool:
        return self._frozen_after is not None and call > self._frozen_after
