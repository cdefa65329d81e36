"""MLflow: runs and trials as runs of an MLflow experiment."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

from shoal._core.plain_data import flat
from shoal._core.tracker import Tracked, Tracker
from shoal.air.integrations._common import Nothing, client, is_first, own_context
from shoal.train import Checkpoint

KEY, REASON = "shoal.key", "shoal.reason"  # tags of a run
_STATUS = {"FINISHED": "FINISHED", "FAILED": "FAILED", "STOPPED": "KILLED"}
_AT_ONCE = 100  # parameters that MLflow takes in one request
_LONGEST = 6000  # characters of a parameter's value that it keeps


class MLflowLoggerCallback(Tracker):
    """Makes a run in MLflow of each run, or of each trial of a search. Give it in ``RunConfig(callbacks=[...])``.

    A driver that goes on with a run goes on with its run in MLflow, too. Needs ``pip install 'shoal[mlflow]'``.

    Parameters
    ----------
    tracking_uri, registry_uri : str, optional
        Where MLflow keeps runs and models; by default what its environment variables say.
    experiment_name : str, optional
        The experiment of MLflow, made if there is none; ``$MLFLOW_EXPERIMENT_NAME`` or ``"Default"`` by default.
    tags : mapping, optional
        Tags of every run.
    tracking_token : str, optional
        The token with which the server is asked.
    save_artifact : bool
        Whether the files of checkpoints are sent, too.

    Examples
    --------
    >>> from shoal import train
    >>> from shoal.air.integrations.mlflow import MLflowLoggerCallback
    >>> tracker = MLflowLoggerCallback("http://localhost:5000", experiment_name="digits", save_artifact=True)
    >>> config = train.RunConfig(callbacks=[tracker])
    """

    def __init__(
        self,
        tracking_uri: str | None = None,
        *,
        registry_uri: str | None = None,
        experiment_name: str | None = None,
        tags: Mapping[str, Any] | None = None,
        tracking_token: str | None = None,
        save_artifact: bool = False,
    ):
        client("mlflow", "mlflow", "MLflowLoggerCallback")
        if tracking_token:
            os.environ["MLFLOW_TRACKING_TOKEN"] = tracking_token
        self._uris = {"tracking_uri": tracking_uri, "registry_uri": registry_uri}
        self._experiment_name = experiment_name or os.environ.get("MLFLOW_EXPERIMENT_NAME") or "Default"
        self._tags = dict(tags or {})
        self._save_artifact = save_artifact
        self._client: Any = None
        self._experiment = ""
        self._runs: dict[str, str] = {}

    def begin(self, run: Tracked) -> None:
        """Make a run in MLflow, or go on with the one that an earlier driver has made."""
        if run.key in self._runs:
            return
        if self._client is None:
            self._connect()
        found = self._client.search_runs([self._experiment], f"tags.`{KEY}` = '{run.key}'", max_results=1)
        if found:
            self._runs[run.key] = run_id = found[0].info.run_id
            self._client.update_run(run_id, status="RUNNING")
            return
        tags = {
            **self._tags,
            KEY: run.key,
            "shoal.path": run.path,
            **({"shoal.search": run.group} if run.group else {}),
        }
        made = self._client.create_run(self._experiment, tags=tags, run_name=run.name)
        self._runs[run.key] = made.info.run_id
        self._describe(made.info.run_id, run.config)

    def log(self, run: Tracked, step: int, metrics: Mapping[str, float]) -> None:
        """Send the numbers of a report."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        self._client.log_batch(
            self._runs[run.key], metrics=[Metric(name, value, now, step) for name, value in metrics.items()]
        )

    def checkpoint(self, run: Tracked, step: int, path: str) -> None:
        """Send the files of a checkpoint, if asked to."""
        if self._save_artifact:
            with Checkpoint(path).as_directory() as directory:
                self._client.log_artifacts(self._runs[run.key], directory, f"checkpoint_{step:06d}")

    def end(self, run: Tracked, state: str, reason: str) -> None:
        """Say how it ended."""
        run_id = self._runs.pop(run.key)
        if reason:
            self._client.set_tag(run_id, REASON, reason)
        self._client.set_terminated(run_id, _STATUS.get(state, "FAILED"))

    def _connect(self) -> None:
        from mlflow.tracking import MlflowClient

        self._client = MlflowClient(**self._uris)
        known = self._client.get_experiment_by_name(self._experiment_name)
        self._experiment = known.experiment_id if known else self._client.create_experiment(self._experiment_name)

    def _describe(self, run_id: str, config: dict[str, Any]) -> None:
        from mlflow.entities import Param

        params = [Param(name, str(value)[:_LONGEST]) for name, value in flat(config).items()]
        for start in range(0, len(params), _AT_ONCE):
            self._client.log_batch(run_id, params=params[start : start + _AT_ONCE])


def setup_mlflow(
    config: dict[str, Any] | None = None,
    tracking_uri: str | None = None,
    registry_uri: str | None = None,
    experiment_id: str | None = None,
    experiment_name: str | None = None,
    tracking_token: str | None = None,
    artifact_location: str | None = None,
    run_name: str | None = None,
    create_experiment_if_not_exists: bool = False,
    tags: dict[str, Any] | None = None,
    rank_zero_only: bool = True,
) -> Any:
    """Begin a run of MLflow in a training function and return the ``mlflow`` module.

    For a function that sends more than its reports: artifacts, models, figures. With ``rank_zero_only`` all ranks but
    the first get something that takes every call and does nothing.

    Parameters
    ----------
    config : dict, optional
        Is sent as the parameters of the run.
    tracking_uri, registry_uri, tracking_token : str, optional
        Where MLflow is, and the token for it.
    experiment_id, experiment_name : str, optional
        The experiment; it has to exist unless ``create_experiment_if_not_exists``.
    artifact_location : str, optional
        Where an experiment that is made keeps its artifacts.
    run_name : str, optional
        The name of the run; by default shoal's.
    tags : dict, optional
        Tags of the run.

    Raises
    ------
    ValueError
        If there is no such experiment.
    """
    if rank_zero_only and not is_first():
        return Nothing()
    mlflow = client("mlflow", "mlflow", "setup_mlflow")
    if tracking_token:
        os.environ["MLFLOW_TRACKING_TOKEN"] = tracking_token
    if tracking_uri:
        mlflow.set_tracking_uri(tracking_uri)
    if registry_uri:
        mlflow.set_registry_uri(registry_uri)
    if experiment_name and not experiment_id:
        known = mlflow.get_experiment_by_name(experiment_name)
        if known is None and not create_experiment_if_not_exists:
            raise ValueError(
                f"MLflow has no experiment {experiment_name!r}: make it, or set create_experiment_if_not_exists=True"
            )
        experiment_id = known.experiment_id if known else mlflow.create_experiment(experiment_name, artifact_location)
    context = own_context()
    own_name = context.get_experiment_name() if context else None
    mlflow.start_run(experiment_id=experiment_id, run_name=run_name or own_name, tags=tags)
    mlflow.log_params({name: str(value)[:_LONGEST] for name, value in flat(config or {}).items()})
    return mlflow
