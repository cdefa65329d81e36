"""The contract for whoever wants to be told of the trials of a search."""

from __future__ import annotations

from abc import ABC
from collections.abc import Sequence
from typing import Any

from shoal._core.trials import Trial


class TrialCallback(ABC):
    """Is told what happens to the trials of a search, in the driver's process and the thread of ``fit()``.

    Override what is of interest. What a callback raises is shown and never ends the search. A method should return
    quickly: all trials wait for it. ``iteration`` counts what the search has handled so far; ``trials`` are all trials
    there are. Each method takes further keywords, so that a later version can say more.

    Examples
    --------
    >>> from shoal import tune
    >>> class Worst(tune.Callback):
    ...     loss = 0.0
    ...
    ...     def on_trial_result(self, iteration, trials, trial, result, **info):
    ...         self.loss = max(self.loss, result["loss"])
    >>> worst = Worst()
    >>> grid = tune.Tuner(
    ...     lambda config: {"loss": config["x"]},
    ...     param_space={"x": tune.grid_search([1, 2, 3])},
    ...     run_config=tune.RunConfig(callbacks=[worst], verbose=0),
    ... ).fit()
    >>> worst.loss
    3
    """

    def setup(
        self, stop: Any = None, num_samples: int | None = None, total_num_samples: int | None = None, **info: Any
    ) -> None:
        """The directory of the search exists; no trial has been started.

        Parameters
        ----------
        stop : optional
            What was given as ``RunConfig(stop=...)``.
        num_samples, total_num_samples : int or None
            What was given in ``TuneConfig``, and how many trials there will be, where that is known.
        """

    def on_step_begin(self, iteration: int, trials: Sequence[Trial], **info: Any) -> None:
        """The search is about to handle something that happened."""

    def on_step_end(self, iteration: int, trials: Sequence[Trial], **info: Any) -> None:
        """The search has handled it."""

    def on_trial_start(self, iteration: int, trials: Sequence[Trial], trial: Trial, **info: Any) -> None:
        """A trial is started, or goes on after a pause or in a later search (see :meth:`on_trial_restore`)."""

    def on_trial_restore(self, iteration: int, trials: Sequence[Trial], trial: Trial, **info: Any) -> None:
        """A trial that is started goes on from a checkpoint, its own or another trial's."""

    def on_trial_recover(self, iteration: int, trials: Sequence[Trial], trial: Trial, **info: Any) -> None:
        """The workers of a trial failed, and are started again."""

    def on_trial_save(self, iteration: int, trials: Sequence[Trial], trial: Trial, **info: Any) -> None:
        """A trial has a new checkpoint."""

    def on_checkpoint(
        self, iteration: int, trials: Sequence[Trial], trial: Trial, checkpoint: Any, **info: Any
    ) -> None:
        """A trial has a new checkpoint, this :class:`shoal.tune.Checkpoint`."""

    def on_trial_result(
        self, iteration: int, trials: Sequence[Trial], trial: Trial, result: dict[str, Any], **info: Any
    ) -> None:
        """A trial has reported; what a restart reports again is not told again."""

    def on_trial_complete(self, iteration: int, trials: Sequence[Trial], trial: Trial, **info: Any) -> None:
        """A trial has ended, by itself or because it was stopped."""

    def on_trial_error(self, iteration: int, trials: Sequence[Trial], trial: Trial, **info: Any) -> None:
        """A trial has failed for good, as ``trial.error`` says."""

    def on_experiment_end(self, trials: Sequence[Trial], **info: Any) -> None:
        """The search is over."""

    def get_state(self) -> dict[str, Any] | None:
        """Return plain data for :meth:`set_state` in a restored search, or ``None`` for none. Asked now and then."""
        return None

    def set_state(self, state: dict[str, Any]) -> None:
        """Take what :meth:`get_state` returned last. Called after :meth:`setup`."""
