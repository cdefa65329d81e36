"""Batches in the forms that people want them in: NumPy arrays, pandas, pyarrow; and rows put together to a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

FORMATS = ("numpy", "pandas", "pyarrow")
Columns = dict[str, Any]


def check_format(batch_format: str) -> None:
    """Raise ``ValueError`` if there is no such form."""
    if batch_format not in FORMATS:
        raise ValueError(f"batch_format={batch_format!r}: choose one of {', '.join(map(repr, FORMATS))}")


def converted(batch: Any, batch_format: str) -> Any:
    """Return a batch, which is a mapping of columns or a pyarrow table, in a form."""
    if batch_format == "pyarrow":
        return batch if _is_arrow(batch) else _arrow(batch)
    if batch_format == "pandas":
        if _is_arrow(batch):
            return batch.to_pandas()
        import pandas as pd

        return pd.DataFrame({name: list(v) if np.ndim(v) > 1 else v for name, v in batch.items()})
    return {name: numbers(batch.column(name)) for name in batch.column_names} if _is_arrow(batch) else batch


def put_together(rows: Sequence[Any]) -> Columns:
    """Return columns of rows, which are mappings, tuples (columns ``"0"``, ``"1"``, …) or values (``"data"``)."""
    first = rows[0]
    if isinstance(first, Mapping):
        return {str(name): stacked([row[name] for row in rows]) for name in first}
    if isinstance(first, tuple | list):
        return {str(place): stacked([row[place] for row in rows]) for place in range(len(first))}
    return {"data": stacked(rows)}


def length(batch: Any) -> int:
    """Return how many rows a batch has."""
    return batch.num_rows if _is_arrow(batch) else len(next(iter(batch.values()), ()))


def stacked(values: Sequence[Any]) -> Any:
    """Return values as one array, with a dimension more; of objects where their shapes or kinds differ."""
    arrays = [np.asarray(value) for value in values]
    if all(array.shape == arrays[0].shape and array.dtype != object for array in arrays):
        return np.stack(arrays)
    ragged = np.empty(len(values), dtype=object)
    ragged[:] = values
    return ragged


def numbers(column: Any) -> Any:
    """Return a column of pyarrow as an array; lists of one length as an array with one more dimension."""
    import pyarrow as pa

    column = column.combine_chunks()
    if isinstance(column, pa.ChunkedArray):
        column = column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks or [pa.array([])])
    if pa.types.is_fixed_size_list(column.type):
        return column.flatten().to_numpy(zero_copy_only=False).reshape(len(column), -1)
    if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
        return stacked(column.to_pylist())
    return column.to_numpy(zero_copy_only=False)


def _arrow(batch: Columns) -> Any:
    import pyarrow as pa

    return pa.table({name: list(v) if np.ndim(v) > 1 else v for name, v in batch.items()})


def _is_arrow(batch: Any) -> bool:
    return hasattr(batch, "column_names") and hasattr(batch, "num_rows")
