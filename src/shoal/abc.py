"""The contracts for plug-ins of your own: engines, frameworks, callbacks, searchers, schedulers, stoppers."""

from shoal._core.contracts import Callback, Engine, Framework, Inbox, Lease, WorkerSide
from shoal._core.tracker import Tracked, Tracker
from shoal._core.trial_callback import TrialCallback
from shoal._core.trials import Searcher, Stopper, Trial, Trials, TrialScheduler

__all__ = [
    "Callback",
    "Engine",
    "Framework",
    "Inbox",
    "Lease",
    "Searcher",
    "Stopper",
    "Tracked",
    "Tracker",
    "Trial",
    "TrialCallback",
    "TrialScheduler",
    "Trials",
    "WorkerSide",
]
