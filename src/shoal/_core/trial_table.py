"""The trials of an experiment, and which of them have a process, wait, or go on from another one's checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from shoal._core.search import Resumption
from shoal._core.trials import Trial, TrialStatus

WAITING = frozenset({TrialStatus.PENDING, TrialStatus.PAUSED})


class Adoption(NamedTuple):
    """Whose checkpoint a trial is to go on from: the one of the ``n``-th report."""

    source_id: str
    n: int


class TrialTable:
    """All trials. It is what schedulers see of the experiment, too.

    Parameters
    ----------
    clone, remove, reallocate : callable
        Do what a scheduler asks for.

    Attributes
    ----------
    adoptions : dict of str to Adoption
        For trials that are to go on from another one's checkpoint when they start next: from which.
    adopting : dict of str to Adoption
        For trials that were started to go on from another one's, and have not reported since.
    unplaced : str or None
        The trial that was started last, as long as it waits for room.
    """

    def __init__(
        self,
        clone: Callable[[Trial, Trial, dict[str, Any]], None],
        remove: Callable[[Trial], None],
        reallocate: Callable[[Trial, dict[str, float]], None],
    ) -> None:
        self.adoptions: dict[str, Adoption] = {}
        self.adopting: dict[str, Adoption] = {}
        self.unplaced: str | None = None
        self._clone = clone
        self._remove = remove
        self._reallocate = reallocate
        self.total_resources: Mapping[str, float] = {}
        self._all: dict[str, Trial] = {}
        self._list: list[Trial] = []
        self._live: dict[str, Trial] = {}
        self._idle: dict[str, Trial] = {}
        self._first: list[str] = []
        self._processes: dict[str, None] = {}
        self._storing: dict[str, set[int]] = {}

    # ---- what schedulers see ----------------------------------------------------------------------------------------

    def get_trials(self) -> Sequence[Trial]:
        return self._list

    def get_live_trials(self) -> Sequence[Trial]:
        return list(self._live.values())

    def get_waiting_trials(self) -> Sequence[Trial]:
        return [trial for trial in self._idle.values() if self.is_waiting(trial)]

    def clone(self, trial: Trial, source: Trial, config: Mapping[str, Any]) -> None:
        self._clone(trial, source, dict(config))

    def stop_trial(self, trial: Trial) -> None:
        self._remove(trial)

    def reallocate(self, trial: Trial, resources: Mapping[str, float]) -> None:
        self._reallocate(trial, dict(resources))

    # ---- what the experiment asks -----------------------------------------------------------------------------------

    def __getitem__(self, trial_id: str) -> Trial:
        return self._all[trial_id]

    def find(self, trial_id: str | None) -> Trial | None:
        """Return the trial of this identifier, if there is one."""
        return self._all.get(trial_id) if trial_id else None

    @property
    def undelivered(self) -> dict[str, Adoption]:
        """What trials are to go on from that perhaps do not have it yet."""
        return {**self.adopting, **self.adoptions}

    @property
    def running(self) -> int:
        """How many trials have a process, or wait for room for one."""
        return len(self._processes)

    def with_process(self) -> list[str]:
        """Return the identifiers of those."""
        return list(self._processes)

    def has_process(self, trial: Trial) -> bool:
        """Whether the trial is one of those."""
        return trial.trial_id in self._processes

    def is_waiting(self, trial: Trial) -> bool:
        """Whether a trial can be started now."""
        adoption = self.adoptions.get(trial.trial_id)
        if adoption is not None and adoption.n in self._storing.get(adoption.source_id, ()):
            return False  # what it is to go on from is not there yet
        return trial.status in WAITING and trial.trial_id not in self._processes

    def next_of_first(self) -> Trial | None:
        """Return the next of those that go before all others."""
        for trial_id in self._first:
            if self.is_waiting(self._all[trial_id]):
                return self._all[trial_id]
        return None

    # ---- what becomes of trials -------------------------------------------------------------------------------------

    def add(self, trial: Trial) -> None:
        """There is a new trial."""
        self._all[trial.trial_id] = self._live[trial.trial_id] = self._idle[trial.trial_id] = trial
        self._list.append(trial)

    def started(self, trial: Trial) -> None:
        """A trial is given a process, and what it is to go on from."""
        adoption = self.adoptions.pop(trial.trial_id, None)
        if adoption is not None and adoption.source_id != trial.trial_id:
            trial.saved_at = max(trial.reports, 1)  # it is given that checkpoint as one of its own
            self.adopting[trial.trial_id] = adoption
        trial.status, trial.started_before = TrialStatus.RUNNING, True
        self._idle.pop(trial.trial_id, None)
        self._processes[trial.trial_id] = None
        self.unplaced = trial.trial_id
        self._not_first(trial)

    def placed(self, trial_id: str) -> None:
        """A trial has the room that it waited for."""
        if self.unplaced == trial_id:
            self.unplaced = None

    def saves(self, trial: Trial, n: int, saved: bool) -> None:
        """A trial has made its ``n``-th report, or is about to, with a checkpoint or without."""
        if saved:
            self._storing.setdefault(trial.trial_id, set()).add(n)
        else:
            self._storing.get(trial.trial_id, set()).discard(n)

    def saved(self, trial_id: str, n: int) -> None:
        """The checkpoint of a trial's ``n``-th report is stored, and no earlier one will be."""
        self._storing[trial_id] = {later for later in self._storing.get(trial_id, ()) if later > n}

    def nothing_is_stored(self, trial_id: str) -> None:
        """What a trial has not stored by now it does not store any more."""
        self._storing.pop(trial_id, None)

    def process_is_gone(self, trial: Trial) -> None:
        """A trial has no process any more."""
        self.nothing_is_stored(trial.trial_id)
        self._processes.pop(trial.trial_id, None)
        self.placed(trial.trial_id)
        if not trial.finished:
            self._idle[trial.trial_id] = trial

    def take_over(self, resumption: Resumption) -> None:
        """Decide what becomes of trials that the last driver has left, or that had failed."""
        self._all_processes_are_gone()
        for trial in self._list:
            if trial.status is TrialStatus.ERROR and (resumption.errored or resumption.restart_errored):
                self._revive(trial, resumption.restart_errored)
            elif trial.finished:
                continue
            elif not resumption.unfinished:
                self.end(trial, TrialStatus.TERMINATED)
            elif trial.status is TrialStatus.RUNNING:
                trial.status = TrialStatus.PENDING
                self.first(trial)

    def end(self, trial: Trial, status: TrialStatus) -> None:
        """A trial does not go on."""
        trial.status = status
        self._live.pop(trial.trial_id, None)
        self._idle.pop(trial.trial_id, None)
        self.adoptions.pop(trial.trial_id, None)
        self.adopting.pop(trial.trial_id, None)
        self._not_first(trial)

    def first(self, trial: Trial) -> None:
        """Have a trial go on before all others."""
        if trial.trial_id not in self._first:
            self._first.append(trial.trial_id)

    def _all_processes_are_gone(self) -> None:
        """The driver that started them is dead, perhaps before it had given them what they were to go on from."""
        self.adoptions = self.undelivered
        self.adopting.clear()
        for trial_id in self.with_process():
            self.process_is_gone(self._all[trial_id])

    def _revive(self, trial: Trial, from_the_beginning: bool) -> None:
        """A trial that had failed is to be tried again."""
        trial.error = ""
        if from_the_beginning:
            trial.started_before = False
            trial.reports = trial.saved_at = 0
        trial.status = TrialStatus.PENDING
        self._live[trial.trial_id] = self._idle[trial.trial_id] = trial
        self.first(trial)

    def _not_first(self, trial: Trial) -> None:
        if trial.trial_id in self._first:
            self._first.remove(trial.trial_id)
