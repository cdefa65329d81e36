"""The base of callbacks that write something down for each trial, and those that need not since shoal does it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from shoal._core.plain_data import printable
from shoal._core.trial_callback import TrialCallback
from shoal._core.trials import Trial


class LoggerCallback(TrialCallback):
    """A callback with a method for each step of a trial's life; ``trial.local_path`` is where to write.

    What lies there is copied to where the search is kept, if that is another place.

    Examples
    --------
    >>> import pathlib
    >>> from shoal import tune
    >>> class Lines(tune.logger.LoggerCallback):
    ...     def log_trial_result(self, iteration, trial, result):
    ...         with open(pathlib.Path(trial.local_path, "losses.txt"), "a") as file:
    ...             print(result["loss"], file=file)
    >>> grid = tune.Tuner(
    ...     lambda config: {"loss": 0.5}, run_config=tune.RunConfig(callbacks=[Lines()], verbose=0)
    ... ).fit()
    >>> pathlib.Path(grid[0].path, "losses.txt").read_text()
    '0.5\\n'
    """

    def log_trial_start(self, trial: Trial) -> None:
        """A trial is started."""

    def log_trial_restore(self, trial: Trial) -> None:
        """A trial goes on from a checkpoint."""

    def log_trial_save(self, trial: Trial) -> None:
        """A trial has a new checkpoint."""

    def log_trial_result(self, iteration: int, trial: Trial, result: dict[str, Any]) -> None:
        """A trial has reported."""

    def log_trial_end(self, trial: Trial, failed: bool = False) -> None:
        """A trial is over."""

    def on_trial_start(self, iteration: int, trials: Sequence[Trial], trial: Trial, **info: Any) -> None:
        self.log_trial_start(trial)

    def on_trial_restore(self, iteration: int, trials: Sequence[Trial], trial: Trial, **info: Any) -> None:
        self.log_trial_restore(trial)

    def on_trial_save(self, iteration: int, trials: Sequence[Trial], trial: Trial, **info: Any) -> None:
        self.log_trial_save(trial)

    def on_trial_result(
        self, iteration: int, trials: Sequence[Trial], trial: Trial, result: dict[str, Any], **info: Any
    ) -> None:
        self.log_trial_result(iteration, trial, result)

    def on_trial_complete(self, iteration: int, trials: Sequence[Trial], trial: Trial, **info: Any) -> None:
        self.log_trial_end(trial, failed=False)

    def on_trial_error(self, iteration: int, trials: Sequence[Trial], trial: Trial, **info: Any) -> None:
        self.log_trial_end(trial, failed=True)


class CSVLoggerCallback(LoggerCallback):
    """For scripts that ask for it: every trial has its ``progress.csv`` anyhow, and this adds nothing."""


class JsonLoggerCallback(LoggerCallback):
    """For scripts that ask for it: every trial has ``metrics.jsonl`` and ``params.json`` anyhow; this adds nothing."""


def pretty_print(result: Mapping[str, Any], exclude: Iterable[str] = ()) -> str:
    """Return a result as indented ``key: value`` lines, without the keys ``exclude`` at any depth.

    Examples
    --------
    >>> from shoal.tune.logger import pretty_print
    >>> print(pretty_print({"loss": 0.25, "eval": {"acc": 0.5, "n": 8}}, exclude=["n"]))
    loss: 0.25
    eval:
      acc: 0.5
    """
    return "\n".join(_lines(result, set(exclude), ""))


def _lines(result: Mapping[str, Any], without: set[str], indent: str) -> Iterable[str]:
    for key, value in result.items():
        if key in without:
            continue
        if isinstance(value, Mapping):
            yield f"{indent}{key}:"
            yield from _lines(value, without, f"{indent}  ")
        else:
            yield f"{indent}{key}: {printable(value)}"
