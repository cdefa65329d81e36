"""What can happen to an experiment, what it wants done, and what its journal says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from shoal._core.commands import Command
from shoal._core.events import Event
from shoal._core.records import DriverStarted, Record

# ---- events ---------------------------------------------------------------------------------------------------------


class Resumption(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of the trials of an earlier driver that have not ended well."""

    unfinished: bool = True
    errored: bool = False
    restart_errored: bool = False


class Begin(Event, frozen=True, kw_only=True):
    """The first event of every experiment; ``wall`` is the time of day (seconds since the epoch) at that moment."""

    wall: float
    driver: DriverStarted = DriverStarted(host="", pid=0, version="")
    resumption: Resumption = Resumption()


class TrialPlaced(Event, frozen=True, kw_only=True):
    """The engine gave a trial its room."""

    trial_id: str


class TrialReported(Event, frozen=True, kw_only=True):
    """A trial made its ``n``-th report, and waits for a decision where the experiment decides.

    ``saved`` says whether it has a checkpoint of this report, or makes one if it is to stop here.
    """

    trial_id: str
    n: int
    row: dict[str, Any]
    saved: bool = False


class TrialSaved(Event, frozen=True, kw_only=True):
    """The checkpoint that a trial made with its ``n``-th report is stored."""

    trial_id: str
    n: int


class TrialRestarted(Event, frozen=True, kw_only=True):
    """The workers of a trial are started again after a failure: what was not stored is lost."""

    trial_id: str


class TrialEnded(Event, frozen=True, kw_only=True):
    """The run of a trial is over. ``error`` says why it failed; it is empty if it did not.

    ``completed`` says whether its function returned; a run that was stopped has not.
    """

    trial_id: str
    completed: bool
    error: str = ""


class RoomChanged(Event, frozen=True, kw_only=True):
    """There is room for so many trials at a time; ``None`` where that is not known.

    ``resources`` are those of all machines.
    """

    trials: int | None
    resources: Mapping[str, float] = msgspec.field(default_factory=dict)


# ---- commands -------------------------------------------------------------------------------------------------------


class StartTrial(Command, frozen=True, kw_only=True):
    """Start the run of a trial, or go on with it. ``anew`` puts what there is of it aside."""

    trial_id: str
    anew: bool = False


class Adopt(Command, frozen=True, kw_only=True):
    """Have a trial go on from another one's checkpoint of its ``n``-th report when it is started the next time.

    If that one is lost, it is the last before it; if ``n`` is 0, the newest.
    """

    trial_id: str
    source_id: str
    n: int = 0


class Decide(Command, frozen=True, kw_only=True):
    """Answer a report: go on, or ``stop`` there."""

    trial_id: str
    n: int
    stop: str = ""


class StopTrial(Command, frozen=True, kw_only=True):
    """End a trial at its next report, or (``kill``) now.

    With a ``grace``, it goes on in another process: it is told, and may save what it has in so many seconds.
    """

    trial_id: str
    reason: str
    kill: bool = False
    grace: float = 0.0


class PersistSearch(Command, frozen=True, kw_only=True):
    """Append a record to the experiment's journal before anything that follows is done."""

    record: Record


class Updated(Command, frozen=True, kw_only=True):
    """Tell callbacks and the display: the status of this trial changed, or it has reported."""

    trial_id: str
    what: str


class FinishSearch(Command, frozen=True, kw_only=True):
    """The experiment is over: every trial that was started has ended. ``error`` says why it failed."""

    state: str
    reason: str = ""


# ---- the journal ----------------------------------------------------------------------------------------------------


class SearchStarted(Record, frozen=True, kw_only=True):
    """A driver took the experiment over."""

    driver: DriverStarted
    resumption: Resumption = Resumption()


class TrialCreated(Record, frozen=True, kw_only=True):
    """The searcher suggested a configuration; ``plain`` says whether it is all that is in ``config``."""

    trial_id: str
    config: dict[str, Any]
    plain: bool = True


class TrialStarted(Record, frozen=True, kw_only=True):
    """The run of a trial is started, or goes on."""

    trial_id: str


class TrialResult(Record, frozen=True, kw_only=True):
    """A trial made its ``n``-th report; ``verdict`` is what was decided, and ``by`` whom."""

    trial_id: str
    n: int
    row: dict[str, Any]
    saved: bool = False
    verdict: str = "CONTINUE"
    by: str = ""


class TrialCloned(Record, frozen=True, kw_only=True):
    """A trial is to go on from another one's checkpoint of its ``n``-th report, with this configuration."""

    trial_id: str
    source_id: str
    config: dict[str, Any]
    plain: bool = True
    n: int = 0


class TrialReallocated(Record, frozen=True, kw_only=True):
    """A scheduler gave a trial other resources."""

    trial_id: str
    resources: dict[str, float]


class TrialRemoved(Record, frozen=True, kw_only=True):
    """A scheduler ended a trial that did not report."""

    trial_id: str


class TrialOver(Record, frozen=True, kw_only=True):
    """The run of a trial has ended; ``status`` is the trial's then."""

    trial_id: str
    status: str
    error: str = ""


class SearchEnded(Record, frozen=True, kw_only=True):
    """The experiment is over."""

    state: str
    reason: str = ""


AnySearchRecord = (
    SearchStarted
    | TrialCreated
    | TrialStarted
    | TrialResult
    | TrialCloned
    | TrialReallocated
    | TrialRemoved
    | TrialOver
    | SearchEnded
)
