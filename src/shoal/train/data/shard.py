"""A worker's share of a data set: its batches, where it stands, and how long training has waited for it."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shoal._worker.data_wait import DataWait
from shoal.train.data.batches import check_format, converted, length, put_together
from shoal.train.data.config import DataConfig
from shoal.train.data.order import BlockPermutation, drawn, of_epoch, rounds
from shoal.train.data.prefetch import prefetched
from shoal.train.data.sources import Rows, Stream
from shoal.train.data.tables import BlockRows

if TYPE_CHECKING:
    import torch


@dataclass
class _Standing:
    """Where a shard is: how many rows of the epoch all ranks together have taken."""

    epoch: int = 0
    position: int = 0
    begun: bool = False


class DataShard:
    """One worker's share of a data set. Each iteration is one epoch.

    A round is one batch for every rank: the ranks take neighbouring rows. The last round of an epoch may be smaller,
    and is shared out evenly. In which order rows come depends on the seed, the epoch and the position, not on the
    number of ranks: a run that goes on with more or fewer of them, from the ``state_dict()`` of a checkpoint, sees each
    row of the epoch exactly once.

    Examples
    --------
    >>> import numpy as np
    >>> from shoal.train.data import DataConfig, as_source
    >>> rows = as_source({"x": np.arange(10)}, "train")
    >>> shard = DataShard(rows, rank=0, world_size=2, config=DataConfig(), name="train")
    >>> [batch["x"].tolist() for batch in shard.iter_batches(batch_size=2)]
    [[0, 1], [4, 5], [8]]
    """

    def __init__(
        self,
        source: Rows | Stream,
        *,
        rank: int,
        world_size: int,
        config: DataConfig,
        name: str,
        wait: DataWait | None = None,
    ):
        if not config.splits(name):
            rank, world_size = 0, 1
        self._source, self._rank, self._size = source, rank, world_size
        self._config, self._name = config, name
        self._shuffled = config.shuffles(name)
        self._rows: Rows | None = source if hasattr(source, "take") else None  # type: ignore[assignment]
        if self._rows is None and self._shuffled:
            raise ValueError(f"the data set {name!r} is a stream: shuffle it where it is made")
        if self._rows is not None and self._rows.count < world_size:
            raise ValueError(
                f"the data set {name!r} has {self._rows.count} rows for {world_size} workers: use fewer workers, or "
                f"give it whole to each with DataConfig(datasets_to_split=[...])"
            )
        self._standing = _Standing()
        self._wait = wait or DataWait()

    def __repr__(self) -> str:
        return f"<shard of {self._name!r}, rank {self._rank} of {self._size}>"

    @property
    def epoch(self) -> int:
        """The epoch that is read, or comes next."""
        return self._standing.epoch

    def count(self) -> int | None:
        """Return how many rows the whole data set has; ``None`` for a stream."""
        return self._rows.count if self._rows is not None else None

    def set_epoch(self, epoch: int) -> None:
        """Have the next iteration be this epoch. Without it each is the one after the last."""
        self._standing = _Standing(epoch=epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return where the shard stands, as plain data that is the same on all ranks that are equally far."""
        standing = self._standing
        return {
            "epoch": standing.epoch,
            "position": standing.position,
            "seed": self._config.seed,
            "count": self.count(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where :meth:`state_dict` was taken, with however many ranks.

        Raises
        ------
        ValueError
            If the data set has another number of rows, or the seed is another one.
        """
        for key, here in (("count", self.count()), ("seed", self._config.seed)):
            if state[key] != here:
                raise ValueError(
                    f"the state of the data set {self._name!r} has {key}={state[key]!r}, but it is {here!r}"
                )
        self._standing = _Standing(epoch=state["epoch"], position=state["position"])

    def wait_share(self) -> float:
        """Return the share of the time between batches, from 0 to 1, in which this worker has waited for data."""
        return self._wait.share()

    # ---- batches ----------------------------------------------------------------------------------------------------

    def iter_batches(
        self,
        *,
        batch_size: int = 256,
        batch_format: str = "numpy",
        prefetch_batches: int = 1,
        drop_last: bool = False,
    ) -> Iterator[Any]:
        """Yield the batches of an epoch.

        Parameters
        ----------
        batch_size : int
            Rows in a batch of this worker.
        batch_format : str
            ``"numpy"`` (a dict of arrays), ``"pandas"`` or ``"pyarrow"``.
        prefetch_batches : int
            How many batches a thread makes ahead; 0 makes each when it is asked for.
        drop_last : bool
            Whether a last round that is not full is left out.
        """
        check_format(batch_format)
        if batch_size < 1:
            raise ValueError(f"batch_size={batch_size!r}: give 1 or more")
        if self._standing.begun:
            self._standing = _Standing(epoch=self._standing.epoch + 1)
        standing = self._standing
        standing.begun = True
        parts = self._parts(standing.epoch, standing.position, batch_size, drop_last, batch_format == "numpy")
        made = ((converted(batch, batch_format), after) for batch, after in parts)
        for batch, after in self._wait.timed(prefetched(made, prefetch_batches)):
            standing.position = after
            yield batch
        self._standing = _Standing(epoch=standing.epoch + 1)

    def iter_rows(self) -> Iterator[dict[str, Any]]:
        """Yield the rows of an epoch, each a dict."""
        for batch in self.iter_batches():
            for row in range(length(batch)):
                yield {name: column[row] for name, column in batch.items()}

    def iter_torch_batches(
        self,
        *,
        batch_size: int = 256,
        dtypes: torch.dtype | Mapping[str, torch.dtype] | None = None,
        device: str | torch.device = "auto",
        collate_fn: Callable[[dict[str, Any]], Any] | None = None,
        prefetch_batches: int = 1,
        drop_last: bool = False,
    ) -> Iterator[Any]:
        """Yield the batches of an epoch as dicts of tensors, or what ``collate_fn`` makes of dicts of arrays.

        Parameters
        ----------
        dtypes : torch.dtype or mapping, optional
            Of all columns, or of those named.
        device : str or torch.device
            Where the tensors are to be; ``"auto"`` is the worker's own.
        collate_fn : callable, optional
            Takes the arrays, returns what is yielded; tensors in it are left where they are.
        batch_size, prefetch_batches, drop_last
            As for :meth:`iter_batches`.
        """
        from shoal.train.data.torch_batches import tensors, worker_device

        where = worker_device() if device == "auto" else device
        batches = self.iter_batches(batch_size=batch_size, prefetch_batches=prefetch_batches, drop_last=drop_last)
        for batch in batches:
            yield collate_fn(batch) if collate_fn is not None else tensors(batch, dtypes, where)

    def to_torch(self, *, batch_size: int = 256, **settings: Any) -> Any:
        """Return a ``torch.utils.data.DataLoader``: each iteration is an epoch of :meth:`iter_torch_batches`."""
        from shoal.train.data.torch_batches import loader

        return loader(lambda: self.iter_torch_batches(batch_size=batch_size, **settings))

    def to_tf(self, *, batch_size: int = 256, prefetch_batches: int = 1, drop_last: bool = False) -> Any:
        """Return a ``tf.data.Dataset`` of dicts of tensors: each iteration is an epoch of :meth:`iter_batches`.

        A data set for ``keras.Model.fit`` wants pairs: ``shard.to_tf().map(lambda row: (row["x"], row["y"]))``.

        Raises
        ------
        TypeError
            If a column holds objects, of which no tensor is made.
        """
        from shoal.train.data.tf_batches import dataset

        first = next(self._parts(self._standing.epoch, 0, batch_size, False, True), None)
        if first is None:
            raise ValueError(f"the data set {self._name!r} has no batch for rank {self._rank}")
        return dataset(
            lambda: self.iter_batches(batch_size=batch_size, prefetch_batches=prefetch_batches, drop_last=drop_last),
            like=converted(first[0], "numpy"),
        )

    def materialize(self, batch_format: str = "numpy") -> Any:
        """Return this worker's rows of an epoch at once."""
        if self._rows is not None:
            mine = self._rows.count // self._size + 1
            (batch,) = self.iter_batches(batch_size=mine, batch_format=batch_format, prefetch_batches=0)
            return batch
        return converted(put_together(list(self.iter_rows())), batch_format)

    # ---- inside -----------------------------------------------------------------------------------------------------

    def _parts(
        self, epoch: int, position: int, batch_size: int, drop_last: bool, arrays: bool
    ) -> Iterator[tuple[Any, int]]:
        """Yield this rank's part of each round, and how many rows all ranks have taken after it."""
        if self._rows is None:
            return self._parts_of_stream(epoch, position, batch_size, drop_last)
        rows, spans = self._rows, self._spans(self._rows.count, position, batch_size, drop_last)
        order = of_epoch(rows.count, self._config.seed, epoch, rows.blocks) if self._shuffled else None
        if isinstance(rows, BlockRows):
            rows.plan(order.blocks if isinstance(order, BlockPermutation) else None)
        if order is None:
            return ((rows.take(slice(first, end), arrays), after) for first, end, after in spans)
        return ((rows.take(places, arrays), after) for places, after in drawn(order, spans))

    def _spans(self, count: int, position: int, batch_size: int, drop_last: bool) -> Iterator[tuple[int, int, int]]:
        """Yield the positions that this rank reads in each round: the first, the end, and the end of all ranks'."""
        for first, end, after in rounds(position, count, batch_size, self._rank, self._size):
            left = after - position
            if left < batch_size * self._size and (drop_last or self._too_few(left)):
                return
            position = after
            if first < end:
                yield first, end, after

    def _parts_of_stream(
        self, epoch: int, position: int, batch_size: int, drop_last: bool
    ) -> Iterator[tuple[Any, int]]:
        rows = self._read(epoch, position)
        while True:
            round_ = list(itertools.islice(rows, batch_size * self._size))
            left = len(round_)
            if not left or (left < batch_size * self._size and (drop_last or self._too_few(left))):
                return
            position += left
            mine = round_[self._rank :: self._size]
            if mine:
                yield put_together(mine), position

    def _read(self, epoch: int, position: int) -> Iterator[Any]:
        """Read a stream from a position on; what it raises is told with the row."""
        done = 0
        try:
            for row in self._source.read(epoch):  # type: ignore[union-attr]
                done += 1
                if done > position:
                    yield row
        except Exception as error:
            error.add_note(f"raised by the data set {self._name!r} after {done} rows of epoch {epoch}")
            raise

    def _too_few(self, left: int) -> bool:
        if left >= self._size or self._config.uneven == "keep":
            return False
        warnings.warn(
            f"the last {left} rows of the data set {self._name!r} are left out of each epoch: there are {self._size} "
            "ranks, and a rank without a batch would leave the others waiting. DataConfig(uneven='keep') keeps them, "
            "for code that bears ranks with one batch less",
            stacklevel=2,
        )
        return True
