"""The tuner: a search space, a searcher, a scheduler, and trials on the same workers that train."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from shoal._core import search
from shoal._core.experiment import Experiment, SearchSpec
from shoal._core.names import directory_name
from shoal._core.plain_data import flat, printable
from shoal._core.space import as_space, check, domains, named
from shoal._core.trial_callback import TrialCallback
from shoal._core.trials import Trial
from shoal._runtime import context, directory, naming
from shoal._runtime.command import this_command
from shoal._runtime.display import brief
from shoal._runtime.searching import SearchJob, SearchOutcome, drive_search, known_search
from shoal._worker.remote import Remote, locate
from shoal.train import overrides
from shoal.train.config import RunConfig, callbacks_of
from shoal.tune import registry
from shoal.tune.callbacks import Callbacks
from shoal.tune.config import TuneConfig
from shoal.tune.result_grid import Entry, ResultGrid, TuneError
from shoal.tune.stopper import as_stopper
from shoal.tune.target import Target

if TYPE_CHECKING:
    from upath import UPath

OF_A_SEARCH = "a search tells of its trials: make its class a subclass of shoal.tune.Callback"


class Tuner:
    """Searches for the best configuration of a trainable.

    Parameters
    ----------
    trainable : callable, subclass of Trainable, or trainer
        A function of a configuration that calls ``tune.report()`` or returns metrics; a :class:`~shoal.tune.Trainable`;
        or a trainer such as ``TorchTrainer``, whose function gets the parameters in its configuration.
    param_space : mapping, optional
        The configuration, with domains such as ``tune.uniform(0, 1)`` at any depth. For a trainer its parameters stand
        at the top, or under ``"train_loop_config"``.
    tune_config : TuneConfig, optional
        What is optimized, and how.
    run_config : RunConfig, optional
        The experiment's name, where it is kept, what happens to trials that fail, when trials end (``stop``).

    Raises
    ------
    TypeError, ValueError
        If something cannot be searched; the message names the parameter.

    Examples
    --------
    >>> from shoal import tune
    >>> def objective(config):
    ...     for step in range(3):
    ...         tune.report({"score": config["a"] * step})
    >>> tuner = tune.Tuner(
    ...     objective,
    ...     param_space={"a": tune.grid_search([1, 2, 3])},
    ...     tune_config=tune.TuneConfig(metric="score", mode="max"),
    ...     run_config=tune.RunConfig(verbose=0),
    ... )
    >>> tuner.fit().get_best_result().metrics["score"]
    6
    """

    def __init__(
        self,
        trainable: Any = None,
        *,
        param_space: Mapping[str, Any] | None = None,
        tune_config: TuneConfig | None = None,
        run_config: RunConfig | None = None,
    ):
        if trainable is None:
            raise ValueError("trainable is missing: give a function of a configuration, a Trainable, or a trainer")
        self._config = tune_config or TuneConfig()
        if not isinstance(self._config, TuneConfig):
            raise TypeError(f"tune_config={tune_config!r} is a {type(tune_config).__name__}, not a TuneConfig")
        self._searcher = registry.searcher(self._config.search_alg)
        self._scheduler = registry.scheduler(self._config.scheduler)
        trainable = registry.trainable(trainable)
        self._target = Target(trainable, run_config, self._judged_by[0])
        self._run_config = self._target.run_config
        self._stopper = as_stopper(self._run_config.stop) if self._run_config.stop is not None else None
        self._space = self._checked_space(param_space)
        self._callbacks = callbacks_of(self._run_config, TrialCallback, OF_A_SEARCH)
        self._resumption = search.Resumption()
        self._outcome: SearchOutcome | None = None

    def fit(self) -> ResultGrid:
        """Run the search to its end and return the results of all trials.

        Ctrl-C once stops it at the trials' next reports and returns what there is; twice ends it at once.

        Raises
        ------
        TuneError
            If the search itself could not go on. A trial that fails does not end it, unless ``fail_fast`` says so.
        RunExists, StorageError
            When the experiment's directory cannot be made.
        KeyboardInterrupt
            After Ctrl-C twice.
        """
        engine = context.engine_for(False)
        if engine.in_process:
            raise TuneError(
                f"a search starts workers of its own, which the engine {engine.name!r} does not; run it without a "
                "launcher and without local_mode"
            )
        self._run_config = overrides.run(self._run_config)
        job = self._job()
        self._outcome = outcome = drive_search(job, engine)
        grid = self._grid(outcome)
        if outcome.machine.failure is not None:
            failure = outcome.machine.failure
            raise TuneError(f"{failure}. What there is of the search is in {outcome.path}") from failure.__cause__
        if outcome.state == "STOPPED" and job.verbose:
            print(f"shoal: to go on: Tuner.restore({str(outcome.path)!r}, trainable, ...).fit()")
        failure_config = self._run_config.failure_config
        if failure_config is not None and failure_config.fail_fast == "raise" and grid.errors:
            raise grid.errors[0]
        return grid

    def get_results(self) -> ResultGrid:
        """Return the results of the search that :meth:`fit` has run."""
        if self._outcome is None:
            raise RuntimeError("there are no results yet: call fit() first, or Tuner.restore(...) and then fit()")
        return self._grid(self._outcome)

    @classmethod
    def can_restore(cls, path: str | os.PathLike[str] | UPath, storage_filesystem: Any = None) -> bool:
        """Whether there is a search at this path that :meth:`restore` can go on with."""
        return directory.has_run(locate(path, storage_filesystem), directory.EXPERIMENT)

    @classmethod
    def restore(
        cls,
        path: str | os.PathLike[str] | UPath,
        trainable: Any,
        resume_unfinished: bool = True,
        resume_errored: bool = False,
        restart_errored: bool = False,
        param_space: Mapping[str, Any] | None = None,
        storage_filesystem: Any = None,
        *,
        tune_config: TuneConfig | None = None,
        run_config: RunConfig | None = None,
    ) -> Tuner:
        """Return a tuner whose ``fit()`` goes on with the search at a path. Trials that have finished stay as they are.

        A search keeps data only, so that opening somebody else's directory executes nothing. What the standard domains,
        searchers and schedulers were made with is data, and need not be given again; the trainable, and what holds
        objects of one's own, does.

        Parameters
        ----------
        path : str or path
            The directory of the search, as in ``ResultGrid.experiment_path``.
        trainable : callable, subclass of Trainable, or trainer
            What trials run.
        resume_unfinished : bool
            Whether trials that had not ended go on from their newest checkpoints.
        resume_errored, restart_errored : bool
            Whether trials that failed go on from their newest checkpoints, or begin anew.
        param_space, tune_config, run_config : optional
            As for :class:`Tuner`, where they cannot be restored or are to be others.

        Raises
        ------
        StorageError
            If there is no search at this path.
        ValueError
            If the search space, the searcher or the scheduler has to be given again.
        """
        place = locate(path, storage_filesystem)
        kept = known_search(place)
        where: dict[str, Any] = {"name": place.name, "storage_path": str(place.parent), "resume": True}
        filesystem = place.filesystem if isinstance(place, Remote) else None
        tuner = cls(
            trainable,
            param_space=registry.restored_space(kept) if param_space is None else param_space,
            tune_config=tune_config or registry.restored_config(kept),
            run_config=replace(
                run_config or registry.restored_run_config(kept), **where, storage_filesystem=filesystem
            ),
        )
        tuner._resumption = search.Resumption(
            unfinished=resume_unfinished, errored=resume_errored, restart_errored=restart_errored
        )
        return tuner

    # ---- inside -----------------------------------------------------------------------------------------------------

    @property
    def _judged_by(self) -> tuple[str | None, str | None]:
        """The metric and the mode: of the configuration, else of the scheduler, else of the searcher."""
        config, scheduler, searcher = self._config, self._scheduler, self._searcher
        return config.metric or scheduler.metric or searcher.metric, config.mode or scheduler.mode or searcher.mode

    def _checked_space(self, given: Mapping[str, Any] | None) -> dict[str, Any]:
        if given is not None and not isinstance(given, Mapping):
            raise TypeError(f"param_space={given!r} is a {type(given).__name__}; give a mapping of names to domains")
        space: dict[str, Any] = as_space(dict(given or {}))
        check(space)
        self._target.check(space)
        return space

    def _job(self) -> SearchJob:
        run, config = self._run_config, self._config
        name, goes_on = naming.named(self._target.name, run.name, run.resume)
        return SearchJob(
            name=name,
            machine=self._machine,
            job_of=lambda trial: self._target.job(trial.config, trial.resources),
            name_of=self._name_of,
            room=self._target.room,
            storage_path=run.storage_path,
            storage_filesystem=run.storage_filesystem,
            resume=goes_on,
            resumption=self._resumption,
            listener=Callbacks(self._callbacks, self._total, stop=run.stop, num_samples=config.num_samples),
            verbose=1 if run.verbose is None else run.verbose,
            total=self._total,
            reuse=config.reuses,
            asked={
                "trainable": self._target.name,
                **dict(zip(("metric", "mode"), self._judged_by, strict=True)),
                "started_at": time.time(),
                "command": this_command(),
                **registry.described(self._space, config, run),
            },
            space=printable(self._space),
            seed=config.seed,
        )

    def _machine(self, search_id: str, seed: int) -> Experiment:
        config, searcher, scheduler = self._config, self._searcher, self._scheduler
        metric, mode = self._judged_by
        if not scheduler.set_search_properties(config.metric, config.mode):
            raise ValueError(
                f"TuneConfig has metric={config.metric!r}, mode={config.mode!r}, but the scheduler has "
                f"metric={scheduler.metric!r}, mode={scheduler.mode!r}; give them once"
            )
        scheduler.set_search_properties(metric, mode)
        if scheduler.needs_metric and (scheduler.metric is None or scheduler.mode is None):
            raise ValueError(f"{type(scheduler).__name__} decides by a metric: give TuneConfig(metric=..., mode=...)")
        samples = config.num_samples
        if not searcher.set_search_properties(metric, mode, self._space, num_samples=samples, seed=seed):
            raise ValueError(
                f"{type(searcher).__name__} has a search space of its own, and param_space has domains; give one"
            )
        failure = self._run_config.failure_config
        spec = SearchSpec(
            search_id=search_id,
            metric=metric,
            mode=mode,
            num_samples=config.num_samples,
            max_concurrent=config.max_concurrent_trials,
            time_budget=config.budget,
            fail_fast=bool(failure.fail_fast) if failure else False,
        )
        return Experiment(spec, searcher, scheduler, self._stopper)

    def _total(self) -> int | None:
        if self._searcher.counts_samples:
            return self._searcher.total_samples()
        return self._config.num_samples if self._config.num_samples > 0 else None

    def _name_of(self, trial: Trial) -> str:
        """Return the name of a trial's directory: its number, and what varies."""
        for creator in (self._config.trial_dirname_creator, self._config.trial_name_creator):
            if creator is not None:
                return directory_name(str(creator(trial)).replace("/", "_"))
        number = trial.trial_id.rpartition("_")[2]
        varying = {named(path) for path, _ in domains(self._space)}
        config = flat(trial.config)
        shown = [key for key in config if not varying or any(f"{key}/".startswith(f"{name}/") for name in varying)]
        told = ",".join(f"{key}={brief(printable(config[key]))}" for key in shown)
        return directory_name(f"{number}_{told}".replace("/", "_").rstrip("_"))

    def _grid(self, outcome: SearchOutcome) -> ResultGrid:
        machine = outcome.machine
        entries = [
            Entry(
                trial=trial,
                config=self._target.shown(trial.config),
                place=outcome.path / outcome.directories[trial.trial_id],
                error=outcome.errors.get(trial.trial_id),
            )
            for trial in machine.table.get_trials()
        ]
        mode = machine.spec.mode
        return ResultGrid(
            outcome.path, entries, metric=machine.metric, mode=mode, space=self._target.shown(self._space)
        )
