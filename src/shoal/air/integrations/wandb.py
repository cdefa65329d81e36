"""Weights & Biases: runs and trials as runs of a project."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from shoal._core.tracker import Tracked, Tracker
from shoal.air.integrations._common import Nothing, client, is_first, own_context
from shoal.train import Checkpoint

DEFAULT_PROJECT = "shoal"


class WandbLoggerCallback(Tracker):
    """Makes a run in Weights & Biases of each run or trial. Give it in ``RunConfig(callbacks=[...])``.

    A driver that goes on with a run goes on with the same run there. Needs ``pip install 'shoal[wandb]'``.

    Parameters
    ----------
    project : str, optional
        The project; ``$WANDB_PROJECT`` or ``"shoal"`` by default.
    group : str, optional
        The group; by default the search of a trial, or ``$WANDB_RUN_GROUP``.
    api_key_file, api_key : str, optional
        The key, or a file that has it; by default what ``wandb login`` has stored, or ``$WANDB_API_KEY``.
    excludes : sequence of str, optional
        Metrics and parameters that are not sent.
    upload_checkpoints : bool
        Whether the files of checkpoints are sent, too.
    **kwargs
        For ``wandb.init``: ``entity``, ``mode="offline"``, ``dir``, ``tags``, …

    Examples
    --------
    >>> from shoal import train
    >>> from shoal.air.integrations.wandb import WandbLoggerCallback
    >>> config = train.RunConfig(callbacks=[WandbLoggerCallback("digits", mode="offline")])
    """

    def __init__(
        self,
        project: str | None = None,
        group: str | None = None,
        api_key_file: str | None = None,
        api_key: str | None = None,
        excludes: Sequence[str] | None = None,
        upload_checkpoints: bool = False,
        **kwargs: Any,
    ):
        self._wandb = client("wandb", "wandb", "WandbLoggerCallback")
        _use_key(api_key, api_key_file)
        self._settings = {
            "project": project or os.environ.get("WANDB_PROJECT") or DEFAULT_PROJECT,
            "group": group or os.environ.get("WANDB_RUN_GROUP"),
            "resume": "allow",
            "reinit": "create_new",
            **kwargs,
        }
        self._excludes = frozenset(excludes or ())
        self._upload_checkpoints = upload_checkpoints
        self._runs: dict[str, Any] = {}

    def begin(self, run: Tracked) -> None:
        """Make a run there, or go on with the one of an earlier driver."""
        if run.key in self._runs:
            return
        config = {name: value for name, value in run.config.items() if name not in self._excludes}
        settings = {"name": run.name, **self._settings, "group": self._settings["group"] or run.group or None}
        self._runs[run.key] = there = self._wandb.init(id=run.key, config=config, **settings)
        # Reports that are made again after a restart have a step that was there before, which its own count refuses.
        there.define_metric("*", step_metric="training_iteration")

    def log(self, run: Tracked, step: int, metrics: Mapping[str, float]) -> None:
        """Send the numbers of a report."""
        kept = {name: value for name, value in metrics.items() if name not in self._excludes}
        self._runs[run.key].log({**kept, "training_iteration": step})

    def checkpoint(self, run: Tracked, step: int, path: str) -> None:
        """Send the files of a checkpoint as an artifact, if asked to."""
        if self._upload_checkpoints:
            with Checkpoint(path).as_directory() as directory:
                artifact = self._wandb.Artifact(f"checkpoint_{run.name}", type="model", metadata={"report": step})
                artifact.add_dir(directory)
                self._runs[run.key].log_artifact(artifact)

    def end(self, run: Tracked, state: str, reason: str) -> None:
        """Say how it ended."""
        there = self._runs.pop(run.key)
        if reason:
            there.summary["shoal/reason"] = reason
        there.finish(exit_code=int(state == "FAILED"))

    def close(self) -> None:
        """Send what is left."""
        while self._runs:
            self._runs.popitem()[1].finish()


def setup_wandb(
    config: dict[str, Any] | None = None,
    api_key: str | None = None,
    api_key_file: str | None = None,
    rank_zero_only: bool = True,
    **kwargs: Any,
) -> Any:
    """Begin a run of Weights & Biases in a training function and return it.

    For a function that sends more than its reports. With ``rank_zero_only`` all ranks but the first get something that
    takes every call and does nothing; without it the runs of all ranks are in one group.

    Parameters
    ----------
    config : dict, optional
        The configuration of the run.
    api_key, api_key_file : str, optional
        The key, or a file that has it.
    **kwargs
        For ``wandb.init``.
    """
    if rank_zero_only and not is_first():
        return Nothing()
    wandb = client("wandb", "wandb", "setup_wandb")
    _use_key(api_key, api_key_file)
    return wandb.init(
        config=config, **{"project": os.environ.get("WANDB_PROJECT") or DEFAULT_PROJECT, **_names(), **kwargs}
    )


def _names() -> dict[str, str]:
    context = own_context()
    if context is None:
        return {}
    name = context.get_experiment_name()
    return {"name": f"{name}-{context.get_world_rank()}", "group": name}


def _use_key(key: str | None, file: str | None) -> None:
    if key and file:
        raise ValueError("api_key and api_key_file are both given: give one of them")
    if file:
        with open(os.path.expanduser(file), encoding="utf-8") as opened:
            key = opened.readline().strip()
    if key:
        os.environ["WANDB_API_KEY"] = key
