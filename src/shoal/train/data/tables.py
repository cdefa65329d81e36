"""Tables of pyarrow, in memory or in files, as rows that are read by number."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from shoal.train.data.batches import numbers
from shoal.train.data.order import Places

OPEN_BLOCKS = 3  # of a file: the one that is read, the one before, and the one that is read ahead


class ArrowRows:
    """A pyarrow table."""

    blocks: Sequence[int] = ()

    def __init__(self, table: Any):
        self.table = table.combine_chunks()
        self.count = table.num_rows
        self._arrays: dict[str, Any] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_arrays": None}

    def take(self, rows: Places | slice, arrays: bool = False) -> Any:
        """Return these rows, in this order: a table, or a mapping of NumPy arrays."""
        if not arrays:
            return _rows_of(self.table, rows)
        if self._arrays is None:
            self._arrays = {name: _view(self.table.column(name)) for name in self.table.column_names}
        return {
            name: numbers(_rows_of(self.table.column(name), rows)) if view is None else view[rows]
            for name, view in self._arrays.items()
        }


class BlockRows:
    """Files, read a row group (Parquet) or a file (others) at a time.

    The last ones are kept in memory, and a thread reads the one that comes next while this one is used.
    """

    def __init__(self, fragments: Sequence[Any]):
        self._groups = [group for fragment in fragments for group in _groups_of(fragment)]
        self.blocks = [_count_of(group) for group in self._groups]
        self.count = sum(self.blocks)
        self._ends = np.cumsum(self.blocks)
        self._reset()

    def __getstate__(self) -> dict[str, Any]:
        return {"_groups": self._groups, "blocks": self.blocks, "count": self.count, "_ends": self._ends}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset()

    def _reset(self) -> None:
        self._open: OrderedDict[int, Future[ArrowRows]] = OrderedDict()
        self._reader: ThreadPoolExecutor | None = None
        self._next: dict[int, int] | None = None

    def plan(self, blocks: Sequence[int] | Places | None) -> None:
        """Say in which order blocks will be read, if not as they are stored: for reading ahead."""
        self._next = None if blocks is None else dict(zip(map(int, blocks), map(int, blocks[1:]), strict=False))

    def take(self, rows: Places | slice, arrays: bool = False) -> Any:
        """Return these rows, in this order: a table, or a mapping of NumPy arrays."""
        parts = [
            self._block(block).take(part, arrays)
            for block, part in (self._of_span(rows) if isinstance(rows, slice) else self._of_places(rows))
        ]
        if len(parts) == 1:
            return parts[0]
        if arrays:
            return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        import pyarrow as pa

        return pa.concat_tables(parts)

    def _of_span(self, rows: slice) -> list[tuple[int, slice]]:
        found, first = [], rows.start
        while first < rows.stop:
            block = int(np.searchsorted(self._ends, first, side="right"))
            end = min(rows.stop, int(self._ends[block]))
            begins = int(self._ends[block]) - self.blocks[block]
            found.append((block, slice(first - begins, end - begins)))
            first = end
        return found

    def _of_places(self, rows: Places) -> list[tuple[int, Places]]:
        which = np.searchsorted(self._ends, rows, side="right")
        borders = np.flatnonzero(np.diff(which)) + 1
        found = []
        for part, block in zip(np.split(rows, borders), which[np.concatenate([[0], borders])], strict=True):
            found.append((int(block), part - (self._ends[block] - self.blocks[block])))
        return found

    def _block(self, number: int) -> ArrowRows:
        block = self._opened(number)
        self._open.move_to_end(number)
        following = number + 1 if self._next is None else self._next.get(number, len(self._groups))
        if following < len(self._groups):
            self._opened(following)
        return block.result()

    def _opened(self, number: int) -> Future[ArrowRows]:
        known = self._open.get(number)
        if known is None or (known.done() and known.exception()):  # what could not be read is tried another time
            if self._reader is None:
                self._reader = ThreadPoolExecutor(1, thread_name_prefix="shoal-read")
            while len(self._open) >= OPEN_BLOCKS:
                self._open.popitem(last=False)
            self._open[number] = self._reader.submit(lambda: ArrowRows(self._groups[number].to_table()))
        return self._open[number]


def _rows_of(table: Any, rows: Places | slice) -> Any:
    return table.slice(rows.start, rows.stop - rows.start) if isinstance(rows, slice) else table.take(rows)


def _view(column: Any) -> Any:
    """Return a column of plain numbers as an array over the same memory; ``None`` for any other."""
    import pyarrow as pa

    if column.num_chunks != 1 or not pa.types.is_primitive(column.type):
        return None
    try:
        return column.chunk(0).to_numpy(zero_copy_only=True)
    except pa.ArrowInvalid:  # it has nulls, or bits for booleans
        return None


def _groups_of(fragment: Any) -> list[Any]:
    return list(fragment.split_by_row_group()) if hasattr(fragment, "split_by_row_group") else [fragment]


def _count_of(group: Any) -> int:
    if hasattr(group, "row_groups"):
        return sum(row_group.num_rows for row_group in group.row_groups)
    return int(group.count_rows())
