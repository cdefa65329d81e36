"""Event files for TensorBoard, with the parameters of each trial for its HPARAMS page."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping
from typing import Any

from shoal._core.plain_data import flat
from shoal._core.trials import Trial
from shoal.tune.logger.base import LoggerCallback

FOLDER = "tensorboard"
_SECONDS = 5.0  # between two times that what a trial has reported is visible to TensorBoard
_UNSHOWN = frozenset({"training_iteration", "timestamp", "attempt"})


class TBXLoggerCallback(LoggerCallback):
    """Writes ``tensorboard/`` in each trial's directory: numbers by iteration, and the trial's parameters.

    ``tensorboard --logdir`` on the directory of the search then shows all trials, and its HPARAMS page their table,
    parallel coordinates and scatter plots. Needs ``pip install 'shoal[tune]'`` (tensorboardX, whose import takes a
    second: therefore no search writes these files unless asked).

    Examples
    --------
    >>> import os
    >>> from shoal import tune
    >>> from shoal.tune.logger import TBXLoggerCallback
    >>> grid = tune.Tuner(
    ...     lambda config: {"loss": config["x"]},
    ...     param_space={"x": tune.uniform(0, 1)},
    ...     run_config=tune.RunConfig(callbacks=[TBXLoggerCallback()], verbose=0),
    ... ).fit()
    >>> os.listdir(os.path.join(grid[0].path, "tensorboard"))[0].startswith("events.out.tfevents")
    True
    """

    def __init__(self) -> None:
        try:
            from tensorboardX import event_file_writer, proto, summary
        except ImportError as error:
            raise ImportError("TBXLoggerCallback needs tensorboardX: pip install 'shoal[tune]'") from error
        self._files, self._proto, self._summary = event_file_writer, proto, summary
        self._writers: dict[str, Any] = {}
        self._flushed_at: dict[str, float | None] = {}

    def log_trial_start(self, trial: Trial) -> None:
        """Begin an event file, and say in it which parameters the trial has."""
        if trial.trial_id in self._writers:
            return
        directory = os.path.join(trial.local_path, FOLDER)
        os.makedirs(directory, exist_ok=True)
        self._writers[trial.trial_id] = self._files.EventsWriter(os.path.join(directory, "events"), f".{os.getpid()}")
        self._flushed_at[trial.trial_id] = None

    def log_trial_result(self, iteration: int, trial: Trial, result: dict[str, Any]) -> None:
        """Write the numbers of a report."""
        writer = self._writers.get(trial.trial_id)
        if writer is None:
            return
        flushed_at = self._flushed_at[trial.trial_id]
        if flushed_at is None:
            self._describe(writer, trial, result)
        values = [
            self._proto.summary_pb2.Summary.Value(tag=name, simple_value=value)
            for name, value in _numbers(result).items()
        ]
        self._write(writer, self._proto.summary_pb2.Summary(value=values), result["training_iteration"])
        now = time.monotonic()
        if flushed_at is None or now - flushed_at > _SECONDS:
            writer.flush()
            self._flushed_at[trial.trial_id] = now

    def log_trial_end(self, trial: Trial, failed: bool = False) -> None:
        """Close the event file."""
        writer = self._writers.pop(trial.trial_id, None)
        if writer is not None:
            self._flushed_at.pop(trial.trial_id)
            writer.close()

    def on_experiment_end(self, trials: Any, **info: Any) -> None:
        """Close what is open still, of trials that are paused."""
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()

    def _describe(self, writer: Any, trial: Trial, result: Mapping[str, Any]) -> None:
        parameters = {name: _parameter(value) for name, value in flat(trial.config).items()}
        for part in self._summary.hparams(parameters, dict.fromkeys(_numbers(result), 0.0)):
            self._write(writer, part, 0)

    def _write(self, writer: Any, summary: Any, step: int) -> None:
        writer.write_event(self._proto.event_pb2.Event(wall_time=time.time(), step=step, summary=summary))


def _numbers(result: Mapping[str, Any]) -> dict[str, float]:
    return {
        name: float(value)
        for name, value in flat(dict(result)).items()
        if isinstance(value, int | float) and name not in _UNSHOWN and not math.isinf(value)
    }


def _parameter(value: Any) -> Any:
    return value if isinstance(value, bool | int | float | str) else repr(value)
