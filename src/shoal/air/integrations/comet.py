"""Comet: runs and trials as experiments of a project."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shoal._core.plain_data import flat
from shoal._core.tracker import Tracked, Tracker
from shoal.air.integrations._common import client
from shoal.train import Checkpoint


class CometLoggerCallback(Tracker):
    """Makes an experiment in Comet of each run or trial. Give it in ``RunConfig(callbacks=[...])``.

    A driver that goes on with a run goes on with the same experiment. Needs ``pip install 'shoal[comet]'``.

    Parameters
    ----------
    online : bool
        Whether it is sent at once; else it is written to ``offline_directory``, for ``comet upload``.
    tags : sequence of str, optional
        Tags of every experiment.
    save_checkpoints : bool
        Whether the files of checkpoints are sent, too.
    **experiment_kwargs
        For ``comet_ml.Experiment`` or ``comet_ml.OfflineExperiment``: ``project_name``, ``workspace``, …

    Examples
    --------
    >>> from shoal import train
    >>> from shoal.air.integrations.comet import CometLoggerCallback
    >>> config = train.RunConfig(callbacks=[CometLoggerCallback(online=False, project_name="digits")])
    """

    def __init__(
        self,
        online: bool = True,
        tags: Sequence[str] | None = None,
        save_checkpoints: bool = False,
        **experiment_kwargs: Any,
    ):
        self._comet = client("comet_ml", "comet", "CometLoggerCallback")
        self._online, self._tags, self._save = online, list(tags or ()), save_checkpoints
        # It is told what happens, and need not look into frameworks and the environment by itself.
        self._settings = {
            "log_code": False,
            "log_env_details": False,
            "log_git_metadata": False,
            "auto_param_logging": False,
            "auto_metric_logging": False,
            "auto_output_logging": False,
            "display_summary_level": 0,
            **experiment_kwargs,
        }
        self._experiments: dict[str, Any] = {}

    def begin(self, run: Tracked) -> None:
        """Make an experiment, or go on with the one of an earlier driver."""
        if run.key in self._experiments:
            return
        self._experiments[run.key] = experiment = self._opened(run.key)
        experiment.set_name(run.name)
        experiment.add_tags(self._tags)
        experiment.log_others({"shoal path": run.path, **({"shoal search": run.group} if run.group else {})})
        experiment.log_parameters(flat(run.config))

    def log(self, run: Tracked, step: int, metrics: Mapping[str, float]) -> None:
        """Send the numbers of a report."""
        self._experiments[run.key].log_metrics(dict(metrics), step=step)

    def checkpoint(self, run: Tracked, step: int, path: str) -> None:
        """Send the files of a checkpoint, if asked to."""
        if self._save:
            with Checkpoint(path).as_directory() as directory:
                self._experiments[run.key].log_model(f"checkpoint_{step:06d}", directory)

    def end(self, run: Tracked, state: str, reason: str) -> None:
        """Say how it ended."""
        experiment = self._experiments.pop(run.key)
        experiment.log_others({"shoal state": state, "shoal reason": reason})
        experiment.end()

    def close(self) -> None:
        """Send what is left."""
        while self._experiments:
            self._experiments.popitem()[1].end()

    def _opened(self, key: str) -> Any:
        if not self._online:
            return self._comet.OfflineExperiment(experiment_key=key, **self._settings)
        if self._comet.API().get_experiment_by_key(key) is not None:
            return self._comet.ExistingExperiment(previous_experiment=key, **self._settings)
        return self._comet.Experiment(experiment_key=key, **self._settings)
