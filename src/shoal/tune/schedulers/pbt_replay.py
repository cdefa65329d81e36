"""The schedule that population based training has found, run again by one trial."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from shoal._core import jsonl, search
from shoal._core.errors import StorageError
from shoal._core.trials import Trial, Trials, TrialScheduler
from shoal._runtime.journal import read_search


class PopulationBasedTrainingReplay(TrialScheduler):
    """Gives one trial the configurations, one after the other, that a trial of a population had come to.

    The lineage of every trial is in the journal of its experiment: what it had taken over, from whom, and when.

    Parameters
    ----------
    policy_file : str or path
        The directory of the trial whose schedule is replayed, such as ``results.get_best_result().path``.

    Attributes
    ----------
    config : dict
        The configuration that it begins with: the ``param_space`` of the replay.
    schedule : list of (int, dict)
        After which report which configuration takes over.

    Raises
    ------
    StorageError
        If there is no trial of a search in this directory.
    """

    def __init__(self, policy_file: str | os.PathLike[str]):
        super().__init__()
        directory = Path(policy_file)
        try:
            trial_id = jsonl.decode((directory / "run.json").read_bytes())["trial_id"]
        except (OSError, KeyError) as error:
            raise StorageError(f"there is no trial of a search in {directory}") from error
        policies = lineages(read_search(directory.parent / "journal.jsonl"))
        self.config, self.schedule = policies[trial_id]
        self._done = 0

    def on_trial_add(self, tune_controller: Trials, trial: Trial) -> None:
        if len(tune_controller.get_trials()) > 1:
            raise ValueError("a replay is one trial: use TuneConfig(num_samples=1) and no grid")

    def on_trial_result(self, tune_controller: Trials, trial: Trial, result: dict[str, Any]) -> str:
        if self._done < len(self.schedule) and result["training_iteration"] >= self.schedule[self._done][0]:
            tune_controller.clone(trial, trial, self.schedule[self._done][1])
            self._done += 1
            return self.NOOP
        return self.CONTINUE


def lineages(
    records: list[search.AnySearchRecord],
) -> dict[str, tuple[dict[str, Any], list[tuple[int, dict[str, Any]]]]]:
    """Return for each trial the configuration it began with, and those that took over after which report."""
    found: dict[str, tuple[dict[str, Any], list[tuple[int, dict[str, Any]]]]] = {}
    reports: dict[str, int] = {}
    for record in records:
        match record:
            case search.TrialCreated():
                found[record.trial_id] = (record.config, [])
            case search.TrialResult():
                reports[record.trial_id] = record.n
            case search.TrialCloned():
                first, steps = found[record.source_id]
                found[record.trial_id] = (first, [*steps, (reports.get(record.trial_id, 0), record.config)])
    return found
