"""Batches of a shard from Parquet files, and the same batches scanned by pyarrow alone; the order of 10⁹ rows."""

from __future__ import annotations

import tempfile
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet

from benchmarks.harness import Measurement
from shoal.train.data import DataConfig, as_source
from shoal.train.data.order import of_epoch
from shoal.train.data.shard import DataShard

ROWS, FILES, BATCH = 2_000_000, 4, 1024


def write_files(place: Path) -> None:
    random = np.random.default_rng(0)
    for number in range(FILES):
        count = ROWS // FILES
        columns: dict[str, Any] = {f"x{column}": random.standard_normal(count, dtype=np.float32) for column in range(8)}
        columns["label"] = random.integers(0, 10, count)
        pyarrow.parquet.write_table(pa.table(columns), place / f"{number}.parquet", row_group_size=100_000)


def with_shard(place: Path, shuffle: bool = False) -> float:
    began = time.perf_counter()
    config = DataConfig(shuffle=shuffle)
    shard = DataShard(as_source(str(place), "train"), rank=0, world_size=1, config=config, name="train")
    seen = sum(len(batch["label"]) for batch in shard.iter_batches(batch_size=BATCH))
    assert seen == ROWS
    return seen / (time.perf_counter() - began) / 1e6


def with_pyarrow(place: Path) -> float:
    began = time.perf_counter()
    seen = 0
    for batch in pyarrow.dataset.dataset(place, format="parquet").to_batches(batch_size=BATCH):
        arrays = {name: batch.column(name).to_numpy(zero_copy_only=False) for name in batch.schema.names}
        seen += len(arrays["label"])
    assert seen == ROWS
    return seen / (time.perf_counter() - began) / 1e6


def order_of_a_billion() -> tuple[float, float]:
    """Return how many positions a second are computed, in millions, and the most memory that it took, in MiB."""
    tracemalloc.start()
    order, done, began = of_epoch(10**9, 0, 0), 0, time.perf_counter()
    for first in range(0, 4_000_000, 4096):
        done += len(order.rows(np.arange(first, first + 4096)))
    speed = done / (time.perf_counter() - began) / 1e6
    peak = tracemalloc.get_traced_memory()[1] / 2**20
    tracemalloc.stop()
    return speed, peak


def measure(quick: bool) -> Iterator[Measurement]:
    times = 3 if quick else 9
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        write_files(place)
        with_pyarrow(place)
        ours, shuffled, theirs = [], [], []
        for _ in range(times):
            ours.append(with_shard(place))
            shuffled.append(with_shard(place, shuffle=True))
            theirs.append(with_pyarrow(place))
    yield Measurement("Parquet to batches, million rows a second", "M", ours, "pyarrow", theirs, ">= 0.9 of it")
    yield Measurement("the same, shuffled", "M", shuffled, "pyarrow in order", theirs)
    speeds, peaks = zip(*(order_of_a_billion() for _ in range(3)), strict=True)
    yield Measurement("order of 10^9 rows, million positions a second", "M", list(speeds))
    yield Measurement("order of 10^9 rows, memory", "MB", list(peaks), budget="no table")
