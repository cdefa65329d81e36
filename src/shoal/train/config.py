"""What a person asks of a run, frozen and checked when it is written down."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from shoal._core.contracts import Callback
from shoal._core.failure import FailurePolicy
from shoal._core.names import directory_name
from shoal._core.retention import CheckpointPolicy
from shoal._core.scaling import GroupRequest
from shoal._core.tpu import CHIPS_OF_A_MACHINE, slice_of
from shoal._core.tracker import Tracker
from shoal._core.trial_callback import TrialCallback
from shoal._runtime.tracking import tracked
from shoal._worker.remote import locate

if TYPE_CHECKING:
    from upath import UPath

STRATEGIES = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")

C = TypeVar("C", bound=Callback | TrialCallback)


@dataclass(frozen=True)
class ScalingConfig:
    """How many workers train, and what each of them gets.

    Parameters
    ----------
    trainer_resources : mapping, optional
        Accepted so that scripts move over; the driver takes no resources of its own.
    num_workers : int or (int, int)
        The number of workers, or the smallest and largest number that will do. 0 runs the function in the calling
        process, where a debugger can step through it.
    use_gpu : bool
        Whether each worker gets one GPU (or ``resources_per_worker["GPU"]`` of them).
    resources_per_worker : mapping of str to float, optional
        What each worker takes: ``CPU``, ``GPU``, ``memory`` in bytes, and custom resources. What is written here must
        really be there; CPUs that nobody asked for may be shared.
    placement_strategy : str
        ``PACK``, ``SPREAD``, ``STRICT_PACK`` or ``STRICT_SPREAD``, for engines with several machines.
    accelerator_type : str, optional
        A kind of accelerator, for engines that know kinds.
    use_tpu : bool
        Whether each worker gets the TPU chips of its machine: 4, or what ``topology`` says, or
        ``resources_per_worker["TPU"]``.
    topology : str, optional
        The shape of a TPU slice, such as ``"4x4"``, with its ``accelerator_type`` such as ``"TPU-V6E"``. There is one
        worker on each of its machines, so ``num_workers`` is as many, or as many for each of several slices.
    label_selector : mapping of str to str, optional
        Labels that a worker's machine must have, for engines that know labels.
    elastic_resize_monitor_interval_s : float
        How long a run with a range of workers waits, in seconds, between two changes of its size. It grows at a new
        checkpoint, from which the larger group begins.
    elastic_room_wait_s : float
        How long such a run waits for room for its largest number before it starts with what there is.

    Examples
    --------
    >>> ScalingConfig(num_workers=2).total_resources
    {'CPU': 2.0}
    >>> ScalingConfig(num_workers=2, use_gpu=True, resources_per_worker={"CPU": 4}).total_resources
    {'CPU': 8.0, 'GPU': 2.0}
    """

    trainer_resources: Mapping[str, float] | None = None
    num_workers: int | tuple[int, int] = 1
    use_gpu: bool = False
    resources_per_worker: Mapping[str, float] | None = None
    placement_strategy: str = "PACK"
    accelerator_type: str | None = None
    label_selector: Mapping[str, str] | None = None
    use_tpu: bool = False
    topology: str | None = None
    elastic_resize_monitor_interval_s: float = 60.0
    elastic_room_wait_s: float = 5.0

    def __post_init__(self) -> None:
        low, high = self.worker_range
        if not (_is_count(low) and _is_count(high)):
            raise TypeError(f"num_workers={self.num_workers!r}: give a number such as 4, or a range such as (2, 8)")
        if low < 0 or high < low or (low == 0 and high > 0):
            raise ValueError(
                f"num_workers={self.num_workers!r} is not possible: give 1 or more, a range (min, max) from 1 up, or 0 "
                "to run in the calling process"
            )
        if self.placement_strategy not in STRATEGIES:
            raise ValueError(f"placement_strategy={self.placement_strategy!r}: choose one of {', '.join(STRATEGIES)}")
        for name, amount in (self.resources_per_worker or {}).items():
            if isinstance(amount, bool) or not isinstance(amount, (int, float)) or not amount >= 0:
                raise ValueError(f"resources_per_worker[{name!r}]={amount!r}: give a number, 0 or more")
        gpus = (self.resources_per_worker or {}).get("GPU", 0)
        if gpus != int(gpus):
            raise ValueError(f"resources_per_worker['GPU']={gpus!r}: a worker has whole GPUs")
        if gpus and not self.use_gpu:
            raise ValueError(f"resources_per_worker asks for {gpus:g} GPUs, but use_gpu is False; set use_gpu=True")
        self._check_tpus(low, high)

    def _check_tpus(self, low: int, high: int) -> None:
        if self.use_tpu and self.use_gpu:
            raise ValueError("use_gpu and use_tpu are both True: a worker has GPUs or TPU chips")
        if (self.resources_per_worker or {}).get("TPU") and not self.use_tpu:
            raise ValueError("resources_per_worker asks for TPU chips, but use_tpu is False; set use_tpu=True")
        if self.topology is None:
            return
        if not self.use_tpu or self.accelerator_type is None:
            raise ValueError(
                f"topology={self.topology!r} is of a TPU slice: give use_tpu=True and its accelerator_type, such as "
                "'TPU-V6E'"
            )
        machines, chips = slice_of(self.topology, self.accelerator_type)
        if low % machines or high % machines or low == 0:
            raise ValueError(
                f"num_workers={self.num_workers!r}: a slice {self.topology} of {self.accelerator_type} has {machines} "
                f"machines with {chips} chips each; use {machines} workers for each slice"
            )

    @property
    def worker_range(self) -> tuple[int, int]:
        """The smallest and largest number of workers."""
        if isinstance(self.num_workers, Sequence) and not isinstance(self.num_workers, str):
            if len(self.num_workers) != 2:
                raise TypeError(f"num_workers={self.num_workers!r}: a range has two numbers, (min, max)")
            return self.num_workers[0], self.num_workers[1]
        return self.num_workers, self.num_workers

    @property
    def worker_resources(self) -> dict[str, float]:
        """What one worker takes, defaults included."""
        asked = {name: float(amount) for name, amount in (self.resources_per_worker or {}).items()}
        defaults = {"CPU": 1.0}
        if self.use_gpu:
            defaults["GPU"] = 1.0
        if self.use_tpu:
            defaults["TPU"] = float(self._chips)
        return {**defaults, **asked}

    @property
    def _chips(self) -> int:
        """How many TPU chips a worker has by default."""
        if self.topology is None or self.accelerator_type is None:
            return CHIPS_OF_A_MACHINE
        return slice_of(self.topology, self.accelerator_type)[1]

    @property
    def total_resources(self) -> dict[str, float]:
        """What all workers take together, at their largest number."""
        return {name: amount * self.worker_range[1] for name, amount in self.worker_resources.items()}

    def request(self) -> GroupRequest:
        """Return this as what an engine is asked for."""
        low, high = self.worker_range
        return GroupRequest(
            min_workers=max(1, low),
            max_workers=max(1, high),
            resources=self.worker_resources,
            explicit=frozenset(self.resources_per_worker or {}),
            strategy=self.placement_strategy,
            labels={
                **(self.label_selector or {}),
                **({"accelerator_type": self.accelerator_type} if self.accelerator_type else {}),
            },
        )


@dataclass(frozen=True)
class FailureConfig:
    """What happens when the worker group fails.

    Parameters
    ----------
    max_failures : int
        How often the group is started again from its newest checkpoint; -1 is without end, 0 never.
    fail_fast : bool or "raise"
        For searches: whether the first failed trial ends the whole search; with ``"raise"`` its error is raised, too.
    max_preemption_failures : int
        How often the group is started again after a preemption (SIGTERM to a worker, or a notice of the engine), which
        does not count as a failure; -1 is without end.
    preemption_grace_s : float
        How many seconds workers have after a notice of preemption, see ``train.get_preemption_info()``.
    reset_on_progress : bool
        Whether ``max_failures`` counts only failures since the last new checkpoint.
    restart_backoff_s : float
        How long to wait, in seconds, before the group starts again after a second failure without a new checkpoint
        between; doubled each time, up to a minute. After a first failure it starts again at once.
    progress_timeout_s : float, optional
        After how many seconds without a report of some rank, from when the first rank trains, the group counts as hung:
        the stacks of all ranks are shown and kept in ``stacks/`` (the native ones too where py-spy is installed), and
        that is a failure like another. Never by default.
    """

    max_failures: int = 0
    fail_fast: bool | str = False
    max_preemption_failures: int = -1
    preemption_grace_s: float = 0.0
    reset_on_progress: bool = False
    restart_backoff_s: float = 1.0
    progress_timeout_s: float | None = None

    def __post_init__(self) -> None:
        if not _is_count(self.max_failures) or self.max_failures < -1:
            raise ValueError(f"max_failures={self.max_failures!r}: give 0 or more, or -1 for no limit")
        if not _is_count(self.max_preemption_failures) or self.max_preemption_failures < -1:
            raise ValueError(
                f"max_preemption_failures={self.max_preemption_failures!r}: give 0 or more, or -1 for no limit"
            )
        if self.fail_fast not in (True, False, "raise"):
            raise ValueError(f"fail_fast={self.fail_fast!r}: choose True, False or 'raise'")
        if not self.preemption_grace_s >= 0:
            raise ValueError(f"preemption_grace_s={self.preemption_grace_s!r}: give 0 or more seconds")
        if not self.restart_backoff_s >= 0:
            raise ValueError(f"restart_backoff_s={self.restart_backoff_s!r}: give 0 or more seconds")
        if self.progress_timeout_s is not None and not self.progress_timeout_s > 0:
            raise ValueError(f"progress_timeout_s={self.progress_timeout_s!r}: give more than 0 seconds, or None")

    def policy(self) -> FailurePolicy:
        """Return this as what the run decides by."""
        return FailurePolicy(
            max_failures=self.max_failures,
            reset_on_progress=self.reset_on_progress,
            backoff=self.restart_backoff_s,
            max_preemptions=self.max_preemption_failures,
            preemption_grace=self.preemption_grace_s,
            progress_timeout=self.progress_timeout_s,
        )


@dataclass(frozen=True)
class CheckpointConfig:
    """Which checkpoints are kept.

    Parameters
    ----------
    num_to_keep : int, optional
        How many checkpoints are kept; all by default. The newest is always kept as well, to restart from.
    checkpoint_score_attribute : str, optional
        The metric by which the best are kept, ``"eval/acc"`` for nested ones; by default the newest are kept. A
        checkpoint whose metric is missing or NaN ranks last.
    checkpoint_score_order : str
        ``"max"`` or ``"min"``.
    checkpoint_frequency : int
        For frameworks that checkpoint by themselves: every how many reports; 0 never.
    checkpoint_at_end : bool, optional
        For frameworks that checkpoint by themselves: whether they do so at the end.
    """

    num_to_keep: int | None = None
    checkpoint_score_attribute: str | None = None
    checkpoint_score_order: str = "max"
    checkpoint_frequency: int = 0
    checkpoint_at_end: bool | None = None

    def __post_init__(self) -> None:
        if self.num_to_keep is not None and (not _is_count(self.num_to_keep) or self.num_to_keep < 1):
            raise ValueError(f"num_to_keep={self.num_to_keep!r}: give 1 or more, or None to keep all")
        if self.checkpoint_score_order not in {"max", "min"}:
            raise ValueError(f"checkpoint_score_order={self.checkpoint_score_order!r}: choose 'max' or 'min'")
        if not _is_count(self.checkpoint_frequency) or self.checkpoint_frequency < 0:
            raise ValueError(f"checkpoint_frequency={self.checkpoint_frequency!r}: give 0 or more")

    def policy(self) -> CheckpointPolicy:
        """Return this as what the run decides by."""
        return CheckpointPolicy(
            num_to_keep=self.num_to_keep,
            score_attribute=self.checkpoint_score_attribute,
            score_order=self.checkpoint_score_order,
        )


@dataclass(frozen=True)
class RunConfig:
    """Where a run is kept, and how it behaves.

    Parameters
    ----------
    name : str, optional
        The name of the run and of its directory; a new one by default.
    storage_path : str or path, optional
        The directory in which run directories lie; ``$SHOAL_STORAGE_PATH`` or ``~/shoal_results`` by default. A path
        that all machines of the run share, a URL of any storage that fsspec reaches (``s3://bucket/runs``,
        ``gs://bucket/runs``), or a ``UPath``.
    storage_filesystem : optional
        An fsspec or pyarrow file system in which ``storage_path`` lies, where a URL does not say enough.
    failure_config : FailureConfig, optional
        What happens when the worker group fails.
    checkpoint_config : CheckpointConfig, optional
        Which checkpoints are kept.
    verbose : int, optional
        0 shows only what workers print, 1 (default) also the progress.
    callbacks : sequence, optional
        Are told what happens: to a run :class:`shoal.abc.Callback`, to the trials of a search
        :class:`shoal.tune.Callback`, to both trackers (:mod:`shoal.air.integrations`, :class:`shoal.abc.Tracker`).
    log_to_driver : sequence of int, "all" or None
        Whose output appears on the console: ranks, all, or nobody's. Every rank's log file is whole in any case.
    resume : bool or "auto"
        What happens if there is a run of this name: ``False`` raises, since no run is ever overwritten; ``"auto"`` goes
        on with it from its newest checkpoint, or starts a new one if there is none; ``True`` goes on, and raises if
        there is none. A run that has finished is not run again: its result is returned.
    stop : mapping, callable, Stopper, or a list of these, optional
        When trials of a search end: ``{"training_iteration": 10}``, or see :mod:`shoal.tune.stopper`.
    progress_reporter : optional
        Is taken and has no effect.
    """

    name: str | None = None
    storage_path: str | os.PathLike[str] | UPath | None = None
    storage_filesystem: Any = None
    failure_config: FailureConfig | None = None
    checkpoint_config: CheckpointConfig | None = None
    verbose: int | None = None
    callbacks: Sequence[Callback | TrialCallback | Tracker] | None = None
    log_to_driver: Sequence[int] | str | None = (0,)
    resume: bool | str = False
    stop: Any = None
    progress_reporter: Any = None

    def __post_init__(self) -> None:
        if self.name is not None:
            directory_name(self.name)
        if self.storage_path is not None:
            locate(self.storage_path, self.storage_filesystem)
        elif self.storage_filesystem is not None:
            raise ValueError("storage_filesystem is given without storage_path: say where in it runs are kept")
        for callback in self.callbacks or ():
            if not isinstance(callback, Callback | TrialCallback | Tracker):
                raise TypeError(
                    f"callbacks: {callback!r} is neither a shoal.abc.Callback (of a run) nor a shoal.tune.Callback (of "
                    f"a search) nor a shoal.abc.Tracker; give an instance of a subclass"
                )
        if self.resume not in (True, False, "auto"):
            raise ValueError(f"resume={self.resume!r}: choose True, False or 'auto'")
        if self.resume and self.name is None:
            raise ValueError("resume needs a name: RunConfig(name=..., resume='auto')")
        if isinstance(self.log_to_driver, str) and self.log_to_driver != "all":
            raise ValueError(f"log_to_driver={self.log_to_driver!r}: give ranks such as [0], 'all', or None")

    @property
    def shown_ranks(self) -> Sequence[int] | None:
        """The ranks whose output appears on the console; ``None`` for all of them."""
        if self.log_to_driver is None:
            return ()
        return None if isinstance(self.log_to_driver, str) else self.log_to_driver

    def describe(self) -> dict[str, Any]:
        """Return what was asked as plain data."""
        failure, checkpoint = self.failure_config or FailureConfig(), self.checkpoint_config or CheckpointConfig()
        return {"failure_config": vars(failure), "checkpoint_config": vars(checkpoint)}


def callbacks_of(run: RunConfig, kind: type[C], use: str) -> tuple[C, ...]:
    """Return the callbacks of a run or of a search, where all are of that kind.

    Raises
    ------
    TypeError
        If one is of the other kind: nothing would ever be told to it.
    """
    told: list[C] = []
    for given in run.callbacks or ():
        callback = tracked(given, kind) if isinstance(given, Tracker) else given
        if not isinstance(callback, kind):
            raise TypeError(f"callbacks: {given!r} would be told nothing here; {use}")
        told.append(callback)
    return tuple(told)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
