"""What a scheduler wants of trials beside its verdict on a report: to clone one, to end one, other resources for one.

In a replay the scheduler wants the same again. It is not done then, for the journal says what was: a wish is kept until
its record comes. What is left at the end, the last driver had not written down when it died, and is done after all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shoal._core import search
from shoal._core.outbox import SearchOutbox
from shoal._core.plain_data import is_plain, printable
from shoal._core.plug_ins import PlugIns
from shoal._core.trial_table import Adoption, TrialTable
from shoal._core.trials import Trial, TrialStatus


class Wishes:
    """Does what a scheduler asks of :attr:`table`.

    Attributes
    ----------
    table : TrialTable
        All trials.
    cloned : bool
        Whether a trial was cloned since this was last set to false.
    """

    def __init__(self, plug_ins: PlugIns, out: SearchOutbox):
        self.table = TrialTable(self._clone, self._remove, self._reallocate)
        self.cloned = False
        self._plug_ins, self._out = plug_ins, out
        self._open: dict[str, Callable[[], None]] = {}
        self._configs: dict[str, dict[str, Any]] = {}

    # ---- what the journal says --------------------------------------------------------------------------------------

    def forget(self) -> None:
        """A record of something else follows: what was wanted before it was not done."""
        self._open.clear()
        self._configs.clear()

    def grant_what_is_open(self) -> None:
        """Do what the last driver died over."""
        wishes = list(self._open.values())
        self._open.clear()
        for wish in wishes:
            wish()

    def cloned_before(self, record: search.TrialCloned) -> None:
        """A trial was cloned. Its configuration is the object of the scheduler, if that has come to the same again."""
        self._open.pop(record.trial_id, None)
        again = self._configs.pop(record.trial_id, None)
        config = again if again is not None and printable(again) == record.config else record.config
        self._set_clone(self.table[record.trial_id], Adoption(record.source_id, record.n), config)

    def removed_before(self, record: search.TrialRemoved) -> None:
        """A trial was ended."""
        self._open.pop(record.trial_id, None)
        self._end(self.table[record.trial_id])

    def reallocated_before(self, record: search.TrialReallocated) -> None:
        """A trial was given other resources."""
        self._open.pop(record.trial_id, None)
        self._set_resources(self.table[record.trial_id], record.resources)

    # ---- what the scheduler asks for --------------------------------------------------------------------------------

    def _clone(self, trial: Trial, source: Trial, config: dict[str, Any]) -> None:
        if self._out.replaying:
            self._configs[trial.trial_id] = dict(config)
            self._open[trial.trial_id] = lambda: self._clone(trial, source, config)
            return
        adoption = Adoption(source.trial_id, source.saved_at)
        kept = {"config": printable(config), "plain": is_plain(config)}
        self._out.persist(search.TrialCloned(trial_id=trial.trial_id, source_id=source.trial_id, n=adoption.n, **kept))
        self._set_clone(trial, adoption, dict(config))
        self._out.updated(trial.trial_id, "cloned")

    def _remove(self, trial: Trial) -> None:
        if trial.finished:
            return
        if self._out.replaying:
            self._open[trial.trial_id] = lambda: self._remove(trial)
            return
        self._out.persist(search.TrialRemoved(trial_id=trial.trial_id))
        self._end(trial)
        if self.table.has_process(trial):
            self._out.emit(search.StopTrial(trial_id=trial.trial_id, reason="the scheduler ended it"))
        self._out.updated(trial.trial_id, "terminated")

    def _reallocate(self, trial: Trial, resources: dict[str, float]) -> None:
        if self._out.replaying:
            self._open[trial.trial_id] = lambda: self._reallocate(trial, resources)
            return
        self._out.persist(search.TrialReallocated(trial_id=trial.trial_id, resources=resources))
        self._set_resources(trial, resources)

    # ---- what becomes of the trial ----------------------------------------------------------------------------------

    def _set_clone(self, trial: Trial, adoption: Adoption, config: dict[str, Any]) -> None:
        trial.config = config
        self.cloned = True
        self.table.adoptions[trial.trial_id] = adoption
        if self.table.has_process(trial):
            self.table.first(trial)

    def _end(self, trial: Trial) -> None:
        self.table.end(trial, TrialStatus.TERMINATED)
        self._plug_ins.completed(self.table, trial, by_scheduler=True)

    def _set_resources(self, trial: Trial, resources: dict[str, float]) -> None:
        trial.resources = resources
        if self.table.has_process(trial):
            self.table.first(trial)
