"""JAX on many workers: one process group of ``jax.distributed`` around them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import msgspec

from shoal._core.contracts import Framework, WorkerSide
from shoal._runtime.requirements import require
from shoal.train.ports import held_address
from shoal.train.trainer import DataParallelTrainer, TrainFunction, checked

__all__ = ["JaxConfig", "JaxTrainer"]


@dataclass(frozen=True)
class JaxConfig(Framework):
    """How ``jax.distributed`` is initialized.

    Parameters
    ----------
    cpu_collectives : str
        What exchanges arrays between CPUs: ``"gloo"`` or ``"mpi"``.
    timeout_s : int
        For how many seconds processes wait for each other at the beginning.
    """

    cpu_collectives: str = "gloo"
    timeout_s: int = 300

    preload: ClassVar[tuple[str, ...]] = ("jax", "jax.numpy", "shoal.train.jax", "shoal.train.result")

    def __post_init__(self) -> None:
        if self.cpu_collectives not in {"gloo", "mpi"}:
            raise ValueError(f"cpu_collectives={self.cpu_collectives!r}: choose 'gloo' or 'mpi'")
        if not self.timeout_s > 0:
            raise ValueError(f"timeout_s={self.timeout_s!r}: give a number of seconds above 0")

    def start(self, worker: WorkerSide) -> None:
        """Have rank 0 coordinate, and all join."""
        ranks, offer = worker.ranks, b""
        if ranks.world_size == 1:
            return
        import jax

        jax.config.update("jax_cpu_collectives_implementation", self.cpu_collectives)  # type: ignore[no-untyped-call]
        if ranks.world_rank == 0:
            with held_address(worker) as address:
                offer = msgspec.json.encode(address)
        address = msgspec.json.decode(worker.gather("jax coordinator", offer)[0])
        jax.distributed.initialize(
            coordinator_address=address,
            num_processes=ranks.world_size,
            process_id=ranks.world_rank,
            initialization_timeout=self.timeout_s,
        )


class JaxTrainer(DataParallelTrainer):
    """Runs a function on every worker, with ``jax.distributed`` initialized: ``jax.devices()`` are those of all.

    Parameters
    ----------
    train_loop_per_worker : callable
        A function without arguments, or with one: the configuration, a dict.
    jax_config : JaxConfig, optional
        How the processes find each other.
    **settings
        As for :class:`~shoal.train.DataParallelTrainer`.

    Examples
    --------
    >>> from shoal import train
    >>> from shoal.train.jax import JaxTrainer
    >>> def train_func():
    ...     import jax
    ...     from jax.experimental import multihost_utils
    ...     ranks = multihost_utils.process_allgather(jax.numpy.array([jax.process_index()]))
    ...     train.report({"processes": jax.process_count(), "sum": int(ranks.sum())})
    >>> trainer = JaxTrainer(
    ...     train_func,
    ...     scaling_config=train.ScalingConfig(num_workers=2),
    ...     run_config=train.RunConfig(verbose=0, log_to_driver=None),
    ... )
    >>> metrics = trainer.fit().metrics
    >>> metrics["processes"], metrics["sum"]
    (2, 1)
    """

    def __init__(
        self,
        train_loop_per_worker: TrainFunction,
        *,
        jax_config: JaxConfig | None = None,
        **settings: Any,
    ):
        require("jax", extra="jax", tested="0.4.35", trainer="JaxTrainer")
        framework = checked("jax_config", jax_config, JaxConfig) or JaxConfig()
        super().__init__(train_loop_per_worker, framework=framework, **settings)
