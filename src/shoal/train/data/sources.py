"""What data sets can be given as, each seen as rows that are read by number, or as a stream."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from shoal.train.data.batches import put_together, stacked
from shoal.train.data.order import Places
from shoal.train.data.tables import ArrowRows, BlockRows

KINDS = (
    "a HuggingFace dataset, a torch dataset, a pyarrow table or dataset, Parquet paths, a pandas or polars frame, "
    "NumPy arrays (one, or a mapping of them), or a function that returns an iterable of rows"
)


class Rows(Protocol):
    """A data set whose rows can be read by their number."""

    count: int

    @property
    def blocks(self) -> Sequence[int]:
        """How many rows its blocks have, if it is read block by block."""
        ...

    def take(self, rows: Places | slice, arrays: bool = False) -> Any:
        """Return these rows, in this order, as columns or, unless arrays are asked for, a pyarrow table."""


class Stream(Protocol):
    """A data set that is read from its beginning."""

    def read(self, epoch: int) -> Iterator[Any]:
        """Return the rows of an epoch."""


class ColumnRows:
    """Arrays in memory."""

    blocks: Sequence[int] = ()

    def __init__(self, columns: Mapping[str, Any], name: str = "the data set"):
        self.columns = {str(key): np.asarray(value) for key, value in columns.items()}
        sizes = {key: len(value) for key, value in self.columns.items()}
        if len(set(sizes.values())) != 1:
            raise ValueError(f"{name} has columns of different lengths: {sizes}")
        self.count = next(iter(sizes.values()))

    def take(self, rows: Places | slice, arrays: bool = True) -> dict[str, Any]:
        """Return these rows, in this order."""
        return {key: value[rows] for key, value in self.columns.items()}


class ItemRows:
    """Anything with a length and ``[number]``, such as a torch data set; or with ``[numbers]``, as HuggingFace's."""

    blocks: Sequence[int] = ()

    def __init__(self, items: Any, whole: bool = False):
        self._items, self._whole = items, whole
        self.count = len(items)

    def take(self, rows: Places | slice, arrays: bool = True) -> dict[str, Any]:
        """Return these rows, in this order."""
        which = list(range(rows.start, rows.stop)) if isinstance(rows, slice) else rows.tolist()
        if self._whole:
            return {name: stacked(values) for name, values in self._items[which].items()}
        many = getattr(self._items, "__getitems__", None)
        return put_together(many(which) if many else [self._items[row] for row in which])


class IterableStream:
    """An iterable that can be read again, such as HuggingFace's streaming data sets, or a function that makes one."""

    def __init__(self, make: Callable[..., Iterable[Any]] | Iterable[Any]):
        self._make = make
        self._takes_epoch = callable(make) and len(inspect.signature(make).parameters) > 0

    def read(self, epoch: int) -> Iterator[Any]:
        """Return the rows of an epoch."""
        if not callable(self._make):
            if hasattr(self._make, "set_epoch"):
                self._make.set_epoch(epoch)
            return iter(self._make)
        return iter(self._make(epoch) if self._takes_epoch else self._make())


def as_source(given: Any, name: str) -> Rows | Stream:
    """Return a data set that was given as ``datasets={name: given}`` in the form in which shards read it.

    Raises
    ------
    TypeError
        If it is none that is known.
    ValueError
        If it is empty, or its columns have different lengths.
    FileNotFoundError
        If there are no files at a path.
    """
    source = _source(given, name)
    if getattr(source, "count", 1) == 0:
        raise ValueError(f"the data set {name!r} is empty")
    return source


def _source(given: Any, name: str) -> Rows | Stream:
    kind = {f"{base.__module__.partition('.')[0]}.{base.__name__}" for base in type(given).__mro__}
    if isinstance(given, str | os.PathLike) or (
        _is_list(given) and all(isinstance(p, str | os.PathLike) for p in given)
    ):
        return _parquet(given, name)
    if "pyarrow.Table" in kind:
        return ArrowRows(given)
    if "pyarrow.Dataset" in kind:
        return BlockRows(list(given.get_fragments()))
    if kind & {"pandas.DataFrame", "polars.DataFrame"}:
        return ColumnRows({column: given[column].to_numpy() for column in given.columns}, f"the data set {name!r}")
    if "datasets.IterableDataset" in kind or "torch.IterableDataset" in kind:
        return IterableStream(given)
    if "datasets.Dataset" in kind:
        return ItemRows(given, whole=True)
    if isinstance(given, np.ndarray):
        return ColumnRows({"data": given})
    if isinstance(given, Mapping) and given and all(hasattr(v, "__len__") for v in given.values()):
        return ColumnRows(given, f"the data set {name!r}")
    if hasattr(given, "__getitem__") and hasattr(given, "__len__") and not isinstance(given, Mapping | str | bytes):
        return ItemRows(given)
    if callable(given):
        return IterableStream(given)
    if isinstance(given, Iterator):
        raise TypeError(
            f"datasets[{name!r}] is an iterator, which only one worker could read, and only once: give a function that "
            "returns a new one"
        )
    if isinstance(given, Iterable) and not isinstance(given, Mapping | str | bytes):
        return IterableStream(given)
    raise TypeError(f"datasets[{name!r}] is a {type(given).__name__}; give {KINDS}")


def _is_list(given: Any) -> bool:
    return isinstance(given, list | tuple) and len(given) > 0


def _parquet(given: Any, name: str) -> BlockRows:
    try:
        import pyarrow.dataset
    except ImportError as error:
        raise ImportError(f"datasets[{name!r}] are Parquet files: pip install 'shoal[data]'") from error
    paths = [str(given)] if isinstance(given, str | os.PathLike) else [str(path) for path in given]
    for path in paths:
        if "://" not in path and not Path(path).exists():
            raise FileNotFoundError(f"datasets[{name!r}]: there is nothing at {path}")
    where = paths[0] if len(paths) == 1 else paths
    return BlockRows(list(pyarrow.dataset.dataset(where, format="parquet").get_fragments()))
