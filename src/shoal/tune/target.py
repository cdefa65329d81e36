"""What is searched: a function, a ``Trainable``, or a trainer, made into jobs of trials."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from shoal._core.contracts import Engine
from shoal._core.job import Job
from shoal._core.scaling import GroupRequest, fitting
from shoal.train.config import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
from shoal.train.trainer import DataParallelTrainer, takes_config
from shoal.tune.in_worker import ClassTrial, FunctionTrial, TrialFramework, takes_argument
from shoal.tune.resources import request_of, resources_of
from shoal.tune.trainable import Trainable

NESTED = "train_loop_config"


class Target:
    """A trainable, and the job that each of its trials is.

    Parameters
    ----------
    trainable : callable, subclass of Trainable, or trainer
        What a trial runs.
    run_config : RunConfig
        How runs behave.
    metric : str or None
        The name of a number that a function returns.

    Raises
    ------
    TypeError
        If it is none of these.
    """

    def __init__(self, trainable: Any, run_config: RunConfig | None, metric: str | None):
        self._resources = resources_of(trainable)
        if isinstance(trainable, DataParallelTrainer):
            self.name = type(trainable).__name__
            self.run_config = run_config or trainable._run_config
            self._trainer = trainable
        else:
            self.run_config = run_config or RunConfig()
            self.name = getattr(trainable, "__name__", type(trainable).__name__)
            function = _in_worker(trainable, self.run_config, metric)
            self._trainer = DataParallelTrainer(function, framework=TrialFramework())
            if self._resources is None and isinstance(trainable, type):
                self._resources = trainable.default_resource_request  # type: ignore[attr-defined]
                if self._resources.__func__ is Trainable.default_resource_request.__func__:  # type: ignore[attr-defined]
                    self._resources = None
        self._is_trainer = isinstance(trainable, DataParallelTrainer)
        self._job = self._base_job()

    def job(self, config: Mapping[str, Any], resources: Mapping[str, float] | None = None) -> Job:
        """Return the job of a trial with this configuration, and (``resources``) with what a scheduler gives it."""
        given = dict(config)
        request = self.request(given) if resources is None else _with(self.request(given), resources)
        if self._is_trainer:
            scaling = given.pop("scaling_config", None)
            inner = given.pop(NESTED, None)
            given = {**self._job.config, **given, **(inner or {})}
            if isinstance(scaling, ScalingConfig):
                request = scaling.request()
        return replace(self._job, config=given, request=request)

    def shown(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return a trial's configuration as ``Result.config`` has it: with what the trainer was given."""
        if not self._is_trainer:
            return dict(config)
        if NESTED in config:
            return {**config, NESTED: {**self._job.config, **config[NESTED]}}
        return {**self._job.config, **config}

    def request(self, config: Mapping[str, Any]) -> GroupRequest:
        """Return what a trial with this configuration takes."""
        resources = self._resources
        if callable(resources):
            resources = resources(dict(config))
        return self._job.request if resources is None else request_of(resources)

    def room(self, engine: Engine) -> int | None:
        """Return how many trials an engine has room for at a time.

        ``None`` where they may differ in size, and where machines come for those that wait. CPUs that nobody asked for
        count as well: a lone trial may share them, several may not.
        """
        if callable(self._resources) or engine.grows:
            return None
        request = self.request({})
        each = replace_all_explicit(request)
        return max(1, fitting(each, engine.total()) // request.min_workers)

    def check(self, config: Mapping[str, Any]) -> None:
        """Raise ``TypeError`` if a trainer's function cannot take the configuration."""
        if self._is_trainer:
            takes_config(self._trainer._function, dict(config))

    def _base_job(self) -> Job:
        job = self._trainer._job()
        run = self.run_config
        return replace(
            job,
            failure=(run.failure_config or FailureConfig()).policy(),
            checkpoint=(run.checkpoint_config or CheckpointConfig()).policy(),
            callbacks=(),
            asked={**job.asked, "run_config": run.describe(), "trainer": self.name},
        )


def _with(request: GroupRequest, resources: Mapping[str, float]) -> GroupRequest:
    """Return a request for other amounts for each worker."""
    amounts = {**request.resources, **resources}
    return GroupRequest(
        min_workers=request.min_workers,
        max_workers=request.max_workers,
        resources=amounts,
        explicit=request.explicit | frozenset(resources),
        strategy=request.strategy,
    )


def replace_all_explicit(request: GroupRequest) -> GroupRequest:
    """Return a request for as many workers as there may be, of which every resource has to be there."""
    return GroupRequest(
        min_workers=1, max_workers=1_000_000, resources=request.resources, explicit=frozenset(request.resources)
    )


def _in_worker(trainable: Any, run: RunConfig, metric: str | None) -> Any:
    """Return what is called in the worker of a trial."""
    if isinstance(trainable, type):
        if not issubclass(trainable, Trainable):
            raise TypeError(f"trainable={trainable!r} is a class; make it a subclass of tune.Trainable, or a function")
        config = run.checkpoint_config or CheckpointConfig()
        at_end = True if config.checkpoint_at_end is None else config.checkpoint_at_end
        return ClassTrial(trainable, config.checkpoint_frequency, at_end)
    if not callable(trainable):
        raise TypeError(
            f"trainable={trainable!r} is a {type(trainable).__name__}; give a function of a configuration, a subclass "
            "of tune.Trainable, or a trainer such as TorchTrainer(...)"
        )
    needed = _required(trainable)
    if len(needed) > 1:
        raise TypeError(
            f"the function {getattr(trainable, '__qualname__', trainable)!r} needs {', '.join(needed)}; a trial gives "
            "it one argument, the configuration. Use tune.with_parameters(function, ...) for others"
        )
    return FunctionTrial(trainable, takes_argument(trainable), metric or "_metric")


def _required(function: Any) -> list[str]:
    """Return the names of the arguments that a function cannot do without."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [p.name for p in parameters if p.kind in kinds and p.default is p.empty]
