"""The trainer for plain functions, and what all trainers share."""

from __future__ import annotations

import dataclasses
import inspect
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from shoal._core import jsonl
from shoal._core.contracts import Callback, Framework
from shoal._core.job import Job
from shoal._core.plain_data import printable
from shoal._core.states import RunState
from shoal._runtime import context, directory, driver, resume
from shoal._runtime.command import this_command
from shoal._runtime.naming import named
from shoal._runtime.preparation import Outcome
from shoal._worker.remote import Remote, locate
from shoal.train import overrides
from shoal.train.checkpoint import Checkpoint
from shoal.train.config import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig, callbacks_of
from shoal.train.plain import PlainFramework
from shoal.train.result import Result, build_result
from shoal.train.validation import ValidationConfig

if TYPE_CHECKING:
    from upath import UPath

    from shoal.train.data.config import DataConfig

TrainFunction = Callable[..., Any]


class DataParallelTrainer:
    """Runs one function on every worker of a group.

    Parameters
    ----------
    train_loop_per_worker : callable
        A function without arguments, or with one: the configuration, a dict.
    train_loop_config : mapping, optional
        The configuration.
    framework : Framework, optional
        What is set up in each worker before the function starts; nothing by default.
    scaling_config : ScalingConfig, optional
        How many workers, and what each gets; one CPU worker by default.
    run_config : RunConfig, optional
        The run's name, where it is kept, what happens on failures.
    datasets : mapping, optional
        Data sets that are shared out among the workers, each under the name by which
        :func:`~shoal.train.get_dataset_shard` returns it: HuggingFace or torch data sets, pyarrow tables or data sets,
        Parquet paths, pandas or polars frames, NumPy arrays, or functions that return an iterable of rows.
    dataset_config : DataConfig, optional
        How they are shared out.
    validation_config : ValidationConfig, optional
        What scores the checkpoints that are reported with ``validation=True``.
    metadata : mapping, optional
        Plain data that ``train.get_context().get_metadata()`` returns.
    resume_from_checkpoint : Checkpoint, optional
        What ``train.get_checkpoint()`` returns before the run has a checkpoint of its own.

    Raises
    ------
    TypeError
        If the function is not callable with a configuration or without arguments, or a configuration has a wrong type.

    Examples
    --------
    >>> from shoal import train
    >>> def train_func(config):
    ...     rank = train.get_context().get_world_rank()
    ...     train.report({"rank": rank, "double": 2 * config["x"]})
    >>> trainer = DataParallelTrainer(
    ...     train_func,
    ...     train_loop_config={"x": 21},
    ...     scaling_config=ScalingConfig(num_workers=2),
    ...     run_config=RunConfig(verbose=0),
    ... )
    >>> trainer.fit().metrics["double"]
    42
    """

    def __init__(
        self,
        train_loop_per_worker: TrainFunction,
        *,
        train_loop_config: Mapping[str, Any] | None = None,
        framework: Framework | None = None,
        scaling_config: ScalingConfig | None = None,
        run_config: RunConfig | None = None,
        datasets: Mapping[str, Any] | None = None,
        dataset_config: DataConfig | None = None,
        validation_config: ValidationConfig | None = None,
        metadata: Mapping[str, Any] | None = None,
        resume_from_checkpoint: Checkpoint | None = None,
    ):
        self._function = train_loop_per_worker
        self._takes_config = takes_config(train_loop_per_worker, train_loop_config)
        self._config = dict(checked("train_loop_config", train_loop_config, Mapping) or {})
        self._framework = checked("framework", framework, Framework) or PlainFramework()
        self._scaling = overrides.scaling(checked("scaling_config", scaling_config, ScalingConfig) or ScalingConfig())
        self._run_config = checked("run_config", run_config, RunConfig) or RunConfig()
        self._datasets: Any = None
        if datasets or dataset_config is not None:
            from shoal.train.data.access import as_datasets  # which loads numpy, that others do not need

            self._datasets = as_datasets(datasets, dataset_config, self._scaling.worker_range[0])
        self._validation = checked("validation_config", validation_config, ValidationConfig)
        self._metadata = dict(checked("metadata", metadata, Mapping) or {})
        self._resume_from = checked("resume_from_checkpoint", resume_from_checkpoint, Checkpoint)

    def fit(self) -> Result:
        """Run the function on all workers, wait for the end, and return the result.

        Ctrl-C once stops the run at the next report and returns what there is, marked ``interrupted``; twice ends it
        at once.

        Raises
        ------
        TrainingFailedError
            When the run failed: the cause first, with rank and traceback; ``__cause__`` is the user's exception.
        InfeasibleRequest
            When more is asked for than the machines can ever give.
        UnpicklableError
            When the function cannot be sent to the workers; the message names the variable.
        RunExists, StorageError
            When the run's directory cannot be made.
        KeyboardInterrupt
            After Ctrl-C twice.
        """
        if self._run_config.stop is not None:
            raise ValueError(
                "RunConfig(stop=...) ends trials of a search: give it to tune.Tuner, or return where it ends"
            )
        self._run_config = overrides.run(self._run_config)
        run, in_process = self._run_config, self._scaling.worker_range == (0, 0)
        if run.resume and run.name:
            place = directory.place_of(run.storage_path, run.name, run.storage_filesystem)
            if resume.finished(place):
                return Result.from_path(str(place), run.storage_filesystem)
        return self._result(driver.drive(self._job(), context.engine_for(in_process)))

    @classmethod
    def can_restore(cls, path: str | os.PathLike[str] | UPath, storage_filesystem: Any = None) -> bool:
        """Whether there is a run at this path that :meth:`restore` can go on with."""
        return directory.has_run(locate(path, storage_filesystem))

    @classmethod
    def restore(
        cls,
        path: str | os.PathLike[str] | UPath,
        train_loop_per_worker: TrainFunction | None = None,
        train_loop_config: Mapping[str, Any] | None = None,
        storage_filesystem: Any = None,
        **settings: Any,
    ) -> Self:
        """Return a trainer whose ``fit()`` goes on with the run at a path, from its newest sound checkpoint.

        A run keeps data only, so that opening somebody else's directory executes nothing: the function has to be given
        again. Its configuration and the run's other settings are those of the run unless they are given too.

        Parameters
        ----------
        path : str or path
            The directory of the run, as in ``Result.path``: a path, a URL, or a ``UPath``.
        train_loop_per_worker : callable
            The training function.
        train_loop_config : mapping, optional
            The configuration, if it is to be another one, or holds more than plain data.
        storage_filesystem : optional
            An fsspec or pyarrow file system in which the path lies.
        **settings
            Parameters of the trainer that are to be different, such as ``scaling_config``.

        Raises
        ------
        StorageError
            If there is no run at this path.
        ValueError
            If the function is missing, or a configuration that the run could keep only as text.
        """
        place = locate(path, storage_filesystem)
        if train_loop_per_worker is None:
            raise ValueError(
                "restore() needs the training function again: restore(path, train_func). A run keeps data only, so "
                "that opening a directory never executes what is in it"
            )
        with directory.records_of(place) as records:
            kept = restored_settings(records, place, train_loop_config, settings)
        return cls(train_loop_per_worker, **kept)

    def _job(self) -> Job:
        run = self._run_config
        name, goes_on = named(type(self).__name__, run.name, run.resume)
        return Job(
            function=self._function,
            takes_config=self._takes_config,
            config=self._config,
            framework=self._framework,
            request=self._scaling.request(),
            name=name,
            storage_path=run.storage_path,
            storage_filesystem=run.storage_filesystem,
            failure=(run.failure_config or FailureConfig()).policy(),
            checkpoint=(run.checkpoint_config or CheckpointConfig()).policy(),
            start_checkpoint=self._resume_from.place if self._resume_from else None,
            validation=self._validation,
            room_wait=self._scaling.elastic_room_wait_s,
            resize_interval=self._scaling.elastic_resize_monitor_interval_s,
            callbacks=callbacks_of(
                run, Callback, "a run has no trials: make its class a subclass of shoal.abc.Callback"
            ),
            verbose=1 if run.verbose is None else run.verbose,
            show_ranks=run.shown_ranks,
            metadata=self._metadata,
            datasets=self._datasets,
            resume=goes_on,
            asked={
                "trainer": type(self).__name__,
                "function": getattr(self._function, "__qualname__", repr(self._function)),
                "scaling_config": printable(dataclasses.asdict(self._scaling)),
                "name": name,
                "run_config": run.describe(),
                "config_is_plain": printable(self._config) == self._config,
                "python": sys.version.split()[0],
                "started_at": time.time(),
                "command": this_command(),
            },
        )

    def _result(self, outcome: Outcome) -> Result:
        policy = (self._run_config.checkpoint_config or CheckpointConfig()).policy()
        return build_result(
            outcome.path,
            outcome.history,
            policy,
            metrics=outcome.metrics,
            config=self._config,
            return_value=outcome.value,
            interrupted=outcome.state is RunState.STOPPED,
        )


def restored_settings(
    records: Path, place: Path | Remote, config: Mapping[str, Any] | None, given: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the parameters of a trainer that goes on with the run at a place, from a copy of its records."""
    asked = jsonl.decode((records / "run.json").read_bytes())
    if config is None:
        if not asked.get("config_is_plain"):
            raise ValueError("the run's configuration holds more than plain data: give train_loop_config again")
        config = jsonl.decode((records / "params.json").read_bytes())
    kept = asked["run_config"]
    where: dict[str, Any] = {
        "name": place.name,
        "storage_path": str(place.parent),
        "storage_filesystem": place.filesystem if isinstance(place, Remote) else None,
        "resume": True,
    }
    run = RunConfig(
        **where,
        failure_config=FailureConfig(**kept["failure_config"]),
        checkpoint_config=CheckpointConfig(**kept["checkpoint_config"]),
    )
    scaling = asked["scaling_config"]
    workers = scaling["num_workers"]
    scaling["num_workers"] = tuple(workers) if isinstance(workers, list) else workers
    # A function without arguments has no configuration, not an empty one.
    defaults = {"run_config": run, "scaling_config": ScalingConfig(**scaling), "train_loop_config": config or None}
    if "run_config" in given:
        given = {**given, "run_config": dataclasses.replace(given["run_config"], **where)}
    return {**defaults, **given}


def checked(name: str, value: Any, kind: type) -> Any:
    """Return a parameter if it is ``None`` or of the right type; raise ``TypeError`` that names it otherwise."""
    if value is None or isinstance(value, kind):
        return value
    raise TypeError(f"{name}={value!r} is a {type(value).__name__}, not a {kind.__name__}")


def takes_config(function: Any, config: Any) -> bool:
    """Whether a training function takes the configuration; raise ``TypeError`` if it cannot be called at all."""
    if not callable(function):
        raise TypeError(
            f"train_loop_per_worker={function!r} is a {type(function).__name__}, which cannot be called; give a "
            "function such as `def train_func(config): ...`"
        )
    name = getattr(function, "__qualname__", repr(function))
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return True  # a function of C code tells nothing of itself
    if _binds(signature, {}) or _binds(signature):
        positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        takes = any(p.kind in positional or p.kind is p.VAR_POSITIONAL for p in signature.parameters.values())
        if config and not takes:
            raise TypeError(
                f"train_loop_config is given, but the training function {name}{signature} takes no argument"
            )
        return takes
    raise TypeError(
        f"the training function {name}{signature} cannot be called with one argument, the configuration, or with none; "
        "give everything it needs in train_loop_config, or use functools.partial"
    )


def _binds(signature: inspect.Signature, *arguments: Any) -> bool:
    try:
        signature.bind(*arguments)
    except TypeError:
        return False
    return True
