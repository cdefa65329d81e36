"""How a trainer gives data sets to its workers, and how the training function gets its share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shoal._worker import session as sessions
from shoal._worker.data_wait import DataWait
from shoal.train.data.config import DataConfig
from shoal.train.data.shard import DataShard
from shoal.train.data.sources import Rows, Stream, as_source

TRAIN_DATASET_KEY = "train"


@dataclass(frozen=True)
class Datasets:
    """The data sets of a trainer, as they travel to its workers."""

    sources: dict[str, Rows | Stream] = field(default_factory=dict)
    config: DataConfig = field(default_factory=DataConfig)

    def shard(self, name: str, rank: int, world_size: int, wait: DataWait | None = None) -> DataShard:
        """Return a rank's share of one of them."""
        return DataShard(self.sources[name], rank=rank, world_size=world_size, config=self.config, name=name, wait=wait)


def as_datasets(given: Mapping[str, Any] | None, config: DataConfig | None, least: int) -> Datasets:
    """Return data sets as they travel.

    Parameters
    ----------
    least : int
        How many workers there are at least.

    Raises
    ------
    TypeError, ValueError, FileNotFoundError
        If one of them is none, is empty, has fewer rows than there are workers, or lies nowhere.
    """
    if given is not None and not isinstance(given, Mapping):
        raise TypeError(f"datasets is a {type(given).__name__}; give a mapping: datasets={{'train': ...}}")
    if config is not None and not isinstance(config, DataConfig):
        raise TypeError(f"dataset_config={config!r} is a {type(config).__name__}, not a DataConfig")
    found = Datasets(
        {str(name): as_source(one, str(name)) for name, one in (given or {}).items()}, config or DataConfig()
    )
    unknown = sorted(found.config.named() - found.sources.keys())
    if unknown:
        raise ValueError(f"dataset_config names {unknown[0]!r}, but datasets has {', '.join(found.sources) or 'none'}")
    for name in found.sources:
        found.shard(name, 0, max(least, 1))
    return found


def get_dataset_shard(dataset_name: str | None = None) -> DataShard:
    """Return this worker's share of a data set of the trainer; the same object each time.

    Parameters
    ----------
    dataset_name : str, optional
        Its key in ``datasets=``; ``"train"`` by default.

    Raises
    ------
    KeyError
        If the trainer has no such data set; the message names those there are.

    Examples
    --------
    >>> import numpy as np
    >>> from shoal import train
    >>> def train_func():
    ...     shard = train.get_dataset_shard("train")
    ...     for epoch in range(2):
    ...         total = sum(batch["x"].sum() for batch in shard.iter_batches(batch_size=4))
    ...         train.report({"epoch": epoch, "total": float(total)})
    >>> trainer = train.DataParallelTrainer(
    ...     train_func, datasets={"train": {"x": np.arange(10)}}, run_config=train.RunConfig(verbose=0)
    ... )
    >>> trainer.fit().metrics["total"]
    45.0
    """
    session = sessions.current("get_dataset_shard()")
    name = dataset_name or TRAIN_DATASET_KEY
    datasets: Datasets = session.work.datasets or Datasets()
    if name not in datasets.sources:
        there = ", ".join(map(repr, datasets.sources)) or "none: give the trainer datasets={...}"
        raise KeyError(f"there is no data set {name!r}; there are {there}")
    if name not in session.shards:
        ranks = session.ranks
        session.shards[name] = datasets.shard(name, ranks.world_rank, ranks.world_size, session.data_wait)
    shard: DataShard = session.shards[name]
    return shard
