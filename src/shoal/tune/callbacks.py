"""Tells the callbacks of a search what happens in it, and keeps what they remember for a restored search."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from shoal._core import jsonl
from shoal._core.experiment import Experiment
from shoal._core.trial_callback import TrialCallback
from shoal._core.trials import Trial
from shoal._runtime.files import write_json
from shoal._runtime.search_driver import SearchListener
from shoal._worker.remote import Remote
from shoal.train.checkpoint import checkpoint_at

STATES = "callbacks.json"
STATE_INTERVAL = 10  # seconds between two times that callbacks are asked what they remember
_ENDS = {"terminated": "on_trial_complete", "error": "on_trial_error"}


class Callbacks(SearchListener):
    """The callbacks of one search.

    Parameters
    ----------
    callbacks : sequence of TrialCallback
        Whom to tell.
    total : callable
        Returns how many trials there will be, if that is known when the search begins.
    **setup
        What else they are told then.
    """

    def __init__(self, callbacks: Sequence[TrialCallback], total: Callable[[], int | None], **setup: Any):
        self._callbacks = callbacks
        self._total, self._setup = total, setup
        self._told: set[tuple[int, str]] = set()
        self._iteration = 0
        self._machine: Experiment | None = None
        self._states = Path()
        self._said: Any = None
        self._stepped = [c for c in callbacks if _overrides(c, "on_step_begin") or _overrides(c, "on_step_end")]
        self._remembering = {
            f"{n}-{type(c).__name__}": c for n, c in enumerate(callbacks) if _overrides(c, "get_state")
        }
        self._asked_at = 0.0

    @property
    def _trials(self) -> Sequence[Trial]:
        assert self._machine is not None
        return self._machine.table.get_trials()

    def begin(self, machine: Experiment, directory: Path, say: Any) -> None:
        self._machine, self._states, self._said = machine, directory / STATES, say
        self._tell("setup", total_num_samples=self._total(), **self._setup)
        states = jsonl.decode(self._states.read_bytes()) if self._states.exists() else {}
        for name, callback in self._remembering.items():
            if name in states:
                self._call(callback, "set_state", states[name])

    def step(self, done: bool) -> None:
        self._iteration += done
        for callback in self._stepped:
            self._call(callback, "on_step_end" if done else "on_step_begin", self._iteration, self._trials)

    def on_trial(self, what: str, trial: Trial) -> None:
        if what == "started":
            self._tell_of(trial, "on_trial_start")
            if trial.has_checkpoint or trial.reports:
                self._tell_of(trial, "on_trial_restore")
        elif what == "result":
            self._tell_of(trial, "on_trial_result", result=trial.last_result)
        elif what in _ENDS:
            self._tell_of(trial, _ENDS[what])

    def on_recover(self, trial: Trial) -> None:
        self._tell_of(trial, "on_trial_recover")

    def on_checkpoint(self, trial: Trial, place: Path | Remote) -> None:
        self._tell_of(trial, "on_trial_save")
        self._tell_of(trial, "on_checkpoint", checkpoint=checkpoint_at(place))

    def tick(self, now: float) -> None:
        if self._remembering and now - self._asked_at >= STATE_INTERVAL:
            self._asked_at = now
            self._remember()

    def end(self) -> None:
        self._tell("on_experiment_end", self._trials)
        if self._remembering:
            self._remember()

    # ---- inside -----------------------------------------------------------------------------------------------------

    def _remember(self) -> None:
        states = {name: self._call(callback, "get_state") for name, callback in self._remembering.items()}
        write_json(self._states, {name: state for name, state in states.items() if state is not None})

    def _tell_of(self, trial: Trial, method: str, **more: Any) -> None:
        self._tell(method, self._iteration, self._trials, trial, **more)

    def _tell(self, method: str, *arguments: Any, **more: Any) -> None:
        for callback in self._callbacks:
            self._call(callback, method, *arguments, **more)

    def _call(self, callback: TrialCallback, method: str, *arguments: Any, **more: Any) -> Any:
        try:
            return getattr(callback, method)(*arguments, **more)
        except Exception as error:
            if (id(callback), method) not in self._told:  # not for each of ten thousand results
                self._told.add((id(callback), method))
                what = f"{type(callback).__name__}.{method} raised {type(error).__name__}: {error}"
                self._said(f"{what}; the search goes on, and this is not said again", "warning")
            return None


def _overrides(callback: TrialCallback, method: str) -> bool:
    return getattr(type(callback), method, None) is not getattr(TrialCallback, method)
