"""Shares of data sets: every row once, in an order that does not depend on the number of ranks."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.train.data import DataConfig, DataShard, as_source
from shoal.train.data.order import BlockPermutation, Permutation, of_epoch
from shoal.train.data.prefetch import prefetched


def shard(data: Any, rank: int = 0, size: int = 1, **config: Any) -> DataShard:
    return DataShard(as_source(data, "train"), rank=rank, world_size=size, config=DataConfig(**config), name="train")


def rows(one: DataShard, batch_size: int = 4, **settings: Any) -> list[int]:
    return [int(x) for batch in one.iter_batches(batch_size=batch_size, **settings) for x in batch["x"]]


# ---- orders ---------------------------------------------------------------------------------------------------------


@given(st.integers(1, 3000), st.integers(0, 2**40))
@settings(max_examples=60, deadline=None)
def test_a_permutation_has_every_row_once(count: int, seed: int):
    drawn = Permutation(count, seed).rows(np.arange(count))
    assert sorted(drawn.tolist()) == list(range(count))


@given(st.lists(st.integers(1, 60), min_size=1, max_size=12), st.integers(0, 2**40))
@settings(max_examples=60, deadline=None)
def test_a_permutation_of_blocks_has_every_row_once_and_reads_block_by_block(sizes: list[int], seed: int):
    drawn = BlockPermutation(sizes, seed).rows(np.arange(sum(sizes)))
    assert sorted(drawn.tolist()) == list(range(sum(sizes)))
    blocks = np.repeat(np.arange(len(sizes)), sizes)[drawn]
    assert (np.diff(blocks) != 0).sum() == len(sizes) - 1


def test_orders_differ_by_seed_and_epoch_and_look_random():
    positions = np.arange(4096)
    drawn = [of_epoch(4096, seed, epoch).rows(positions) for seed, epoch in ((0, 0), (0, 1), (1, 0))]
    for one in drawn:
        assert abs(np.corrcoef(positions, one)[0, 1]) < 0.06  # four standard deviations of an independent order
        assert (one == positions).sum() < 10
    assert all((drawn[a] == drawn[b]).sum() < 10 for a, b in ((0, 1), (0, 2), (1, 2)))


@pytest.mark.parametrize("count", [3, 7, 100])
def test_over_many_seeds_each_row_is_at_each_position_equally_often(count: int):
    seeds = 3000
    drawn = np.array([of_epoch(count, seed, 0).rows(np.arange(count)) for seed in range(seeds)])
    for position in {0, 1, count - 1}:
        found = np.bincount(drawn[:, position], minlength=count)
        assert abs(found - seeds / count).max() < 5 * (seeds / count) ** 0.5


def test_a_billion_rows_need_no_table():
    order = of_epoch(10**9, 0, 0)
    found = order.rows(np.array([0, 1, 10**9 - 1]))
    assert len(set(found.tolist())) == 3
    assert found.max() < 10**9
    assert not [value for value in vars(order).values() if isinstance(value, np.ndarray) and value.size > 10]


# ---- shares ---------------------------------------------------------------------------------------------------------


@given(
    count=st.integers(8, 200),
    sizes=st.lists(st.integers(1, 7), min_size=1, max_size=4),
    batch=st.integers(1, 9),
    stop=st.integers(0, 6),
    shuffle=st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_an_epoch_that_is_gone_on_with_by_other_numbers_of_ranks_has_every_row_once(
    count: int, sizes: list[int], batch: int, stop: int, shuffle: bool
):
    state: dict[str, Any] | None = None
    seen: list[int] = []
    for attempt, size in enumerate(sizes):
        last = attempt == len(sizes) - 1
        states = []
        for rank in range(size):
            one = shard({"x": np.arange(count)}, rank, size, shuffle=shuffle, seed=3, uneven="keep")
            if state is not None:
                one.load_state_dict(state)
            epoch = one.epoch
            batches = one.iter_batches(batch_size=batch, prefetch_batches=0)
            # Ranks stop after as many batches each; one that gets none of a last small round is not behind.
            taken = list(batches) if last else list(itertools.islice(batches, stop))
            seen += [int(x) for b in taken for x in b["x"]] if epoch == 0 else []
            states.append(one.state_dict())
        furthest = max(states, key=lambda s: (s["epoch"], s["position"]))
        state = furthest
    if state is not None and state["epoch"] == 1:
        assert sorted(seen) == list(range(count))
    assert len(seen) == len(set(seen))


def test_the_order_of_an_epoch_does_not_depend_on_the_number_of_ranks():
    def round_by_round(size: int) -> list[int]:
        shards = [shard({"x": np.arange(48)}, rank, size, shuffle=True) for rank in range(size)]
        batches = zip(*[list(one.iter_batches(batch_size=12 // size)) for one in shards], strict=True)
        return [int(x) for round_ in batches for batch in round_ for x in batch["x"]]

    assert round_by_round(1) == round_by_round(2) == round_by_round(4)


def test_each_iteration_is_the_next_epoch_and_set_epoch_chooses():
    one = shard({"x": np.arange(20)}, shuffle=True)
    first, second = rows(one), rows(one)
    assert sorted(first) == sorted(second) == list(range(20))
    assert first != second
    one.set_epoch(0)
    assert rows(one) == first
    next(one.iter_batches(batch_size=4))  # given up in the middle
    assert one.epoch == 1
    assert rows(one) != second  # epoch 2
    assert one.epoch == 3


def test_a_last_round_with_fewer_rows_than_ranks_is_dropped_or_kept():
    with pytest.warns(UserWarning, match=r"the last 1 rows of the data set 'train' are left out"):
        assert [rows(shard({"x": np.arange(9)}, rank, 2)) for rank in (0, 1)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    kept = [rows(shard({"x": np.arange(9)}, rank, 2, uneven="keep")) for rank in (0, 1)]
    assert kept == [[0, 1, 2, 3, 8], [4, 5, 6, 7]]
    assert rows(shard({"x": np.arange(9)}), drop_last=True) == list(range(8))


def test_a_data_set_that_is_not_split_is_whole_on_every_rank():
    config = {"datasets_to_split": ["other"]}
    assert [rows(shard({"x": np.arange(5)}, rank, 2, **config)) for rank in (0, 1)] == [[0, 1, 2, 3, 4]] * 2


def test_a_state_of_another_data_set_is_refused():
    state = shard({"x": np.arange(20)}).state_dict()
    with pytest.raises(ValueError, match="has count=20, but it is 21"):
        shard({"x": np.arange(21)}).load_state_dict(state)
    with pytest.raises(ValueError, match="has seed=0, but it is 1"):
        shard({"x": np.arange(20)}, seed=1).load_state_dict(state)


# ---- kinds of data sets ---------------------------------------------------------------------------------------------


def every_kind(tmp_path: Path) -> dict[str, Any]:
    import datasets
    import pandas as pd
    import polars as pl
    import pyarrow as pa
    import pyarrow.dataset
    import pyarrow.parquet
    import torch

    columns = {"x": np.arange(23), "y": np.arange(23) * 0.5}
    table = pa.table(columns)
    pyarrow.parquet.write_table(table.slice(0, 10), tmp_path / "1.parquet", row_group_size=4)
    pyarrow.parquet.write_table(table.slice(10), tmp_path / "2.parquet", row_group_size=4)

    class Torch(torch.utils.data.Dataset[dict[str, Any]]):
        def __len__(self) -> int:
            return 23

        def __getitem__(self, n: int) -> dict[str, Any]:
            return {"x": n, "y": n * 0.5}

    return {
        "numpy": columns,
        "pandas": pd.DataFrame(columns),
        "polars": pl.DataFrame(columns),
        "table": table,
        "arrow dataset": pa.dataset.dataset(tmp_path, format="parquet"),
        "parquet": str(tmp_path),
        "parquet files": [tmp_path / "1.parquet", tmp_path / "2.parquet"],
        "huggingface": datasets.Dataset.from_dict({"x": list(range(23)), "y": [n * 0.5 for n in range(23)]}),
        "torch": Torch(),
        "list": [{"x": n, "y": n * 0.5} for n in range(23)],
        "stream": lambda: ({"x": n, "y": n * 0.5} for n in range(23)),
        "huggingface stream": datasets.Dataset.from_dict({"x": list(range(23)), "y": [0.0] * 23}).to_iterable_dataset(),
    }


def test_every_kind_gives_every_row_once_shared_out_and_in_every_form(tmp_path: Path):
    import pickle

    import cloudpickle

    for kind, data in every_kind(tmp_path).items():
        source = pickle.loads(cloudpickle.dumps(as_source(data, "train")))  # as it travels
        for size in (1, 2, 3):
            shares = [
                DataShard(source, rank=rank, world_size=size, config=DataConfig(uneven="keep"), name="train")
                for rank in range(size)
            ]
            seen = [x for one in shares for x in rows(one)]
            assert sorted(seen) == list(range(23)), kind
        one = DataShard(source, rank=0, world_size=1, config=DataConfig(), name="train")
        frame = next(one.iter_batches(batch_size=5, batch_format="pandas"))
        assert list(frame.columns) == ["x", "y"], kind
        table = next(one.iter_batches(batch_size=5, batch_format="pyarrow"))
        assert table.num_rows == 5, kind
        batch = next(one.iter_torch_batches(batch_size=5))
        assert batch["x"].tolist() == [0, 1, 2, 3, 4], kind
        assert len(one.materialize()["x"]) == 23, kind
        if "stream" not in kind:
            shuffled = DataShard(source, rank=0, world_size=1, config=DataConfig(shuffle=True), name="train")
            drawn = rows(shuffled)
            assert sorted(drawn) == list(range(23)), kind
            assert drawn != list(range(23)), kind


def test_a_column_of_lists_of_a_huggingface_data_set_is_one_column():
    import datasets

    tokens = datasets.Dataset.from_dict({"ids": [[1, 2], [3, 4]], "ragged": [[1], [1, 2]], "text": ["a", "b"]})
    batch = next(shard(tokens).iter_batches())
    assert batch["ids"].tolist() == [[1, 2], [3, 4]]
    assert [list(value) for value in batch["ragged"]] == [[1], [1, 2]]
    assert batch["text"].tolist() == ["a", "b"]


def test_rows_of_other_forms_become_columns():
    assert next(shard([(1, [1, 2]), (3, [3, 4])]).iter_batches())["1"].tolist() == [[1, 2], [3, 4]]
    assert next(shard(np.arange(6).reshape(3, 2)).iter_batches())["data"].shape == (3, 2)
    ragged = next(shard([{"x": [1]}, {"x": [1, 2]}]).iter_batches())["x"]
    assert [list(value) for value in ragged] == [[1], [1, 2]]
    assert [row["x"] for row in shard({"x": np.arange(3)}).iter_rows()] == [0, 1, 2]


def test_an_epoch_that_was_taken_at_once_is_over():
    one = shard({"x": np.arange(5)})
    assert one.materialize()["x"].tolist() == [0, 1, 2, 3, 4]
    assert one.state_dict()["position"] == 0
    one.load_state_dict(one.state_dict())
    assert one.materialize()["x"].tolist() == [0, 1, 2, 3, 4]


def test_the_share_of_waiting_is_measured():
    def slow() -> Iterator[int]:
        for number in range(4):
            time.sleep(0.05)
            yield number

    one = shard(slow)
    assert one.wait_share() == 0.0
    for _ in one.iter_batches(batch_size=1, prefetch_batches=0):
        pass
    assert one.wait_share() > 0.9


def test_a_loader_of_torch_is_an_epoch_each_time():
    loader = shard({"x": np.arange(6.0)}).to_torch(batch_size=4)
    assert [[batch["x"].tolist() for batch in loader] for _ in range(2)] == [[[0.0, 1.0, 2.0, 3.0], [4.0, 5.0]]] * 2


# ---- what goes wrong ------------------------------------------------------------------------------------------------


def test_a_stream_that_fails_says_after_which_row_and_leaves_no_thread():
    def broken() -> Iterator[int]:
        yield from range(10)
        raise OSError("the line is cut")

    seen: list[int] = []
    batches = shard(broken).iter_batches(batch_size=4, prefetch_batches=2)
    with pytest.raises(OSError, match="the line is cut") as caught:
        seen.extend(x for batch in batches for x in batch["data"].tolist())
    assert caught.value.__notes__ == ["raised by the data set 'train' after 10 rows of epoch 0"]
    assert seen == list(range(8))
    assert not [thread for thread in threading.enumerate() if thread.name == "shoal-prefetch"]


def test_an_iteration_that_is_given_up_leaves_no_thread():
    batches = shard({"x": np.arange(100)}).iter_batches(batch_size=1, prefetch_batches=3)
    next(batches)
    batches.close()  # type: ignore[attr-defined]
    assert not [thread for thread in threading.enumerate() if thread.name == "shoal-prefetch"]


@pytest.mark.parametrize(
    ("data", "error", "complaint"),
    [
        (3, TypeError, r"datasets\['train'\] is a int; give a HuggingFace dataset"),
        (iter([1]), TypeError, "is an iterator, which only one worker could read"),
        ({"x": [1, 2], "y": [1]}, ValueError, r"columns of different lengths: \{'x': 2, 'y': 1\}"),
        (np.empty((0, 2)), ValueError, "the data set 'train' is empty"),
        ("/nowhere.parquet", FileNotFoundError, "there is nothing at /nowhere.parquet"),
    ],
)
def test_what_is_no_data_set_is_refused(data: Any, error: type[Exception], complaint: str):
    with pytest.raises(error, match=complaint):
        shard(data)


def test_other_mistakes_are_told():
    with pytest.raises(ValueError, match="has 3 rows for 4 workers: use fewer workers"):
        shard({"x": np.arange(3)}, 0, 4)
    with pytest.raises(ValueError, match="is a stream: shuffle it where it is made"):
        shard(lambda: [1], shuffle=True)
    with pytest.raises(ValueError, match="batch_size=0: give 1 or more"):
        next(shard({"x": np.arange(3)}).iter_batches(batch_size=0))
    with pytest.raises(ValueError, match="choose one of 'numpy', 'pandas', 'pyarrow'"):
        next(shard({"x": np.arange(3)}).iter_batches(batch_format="tensor"))
    with pytest.raises(TypeError, match="the column 'name' holds str, of which no tensor is made"):
        next(shard({"name": np.array(["a", "b"])}).iter_torch_batches())
    with pytest.raises(ValueError, match="uneven='join': choose 'drop' or 'keep'"):
        DataConfig(uneven="join")


# ---- files ----------------------------------------------------------------------------------------------------------


def test_columns_of_files_come_as_what_they_are_also_over_the_borders_of_row_groups(tmp_path: Path):
    table = pa.table(
        {
            "x": np.arange(20),
            "word": [f"w{number}" for number in range(20)],
            "gaps": pa.array([None if number % 5 == 0 else float(number) for number in range(20)]),
            "flag": [number % 2 == 0 for number in range(20)],
            "pair": pa.array([[number, -number] for number in range(20)], pa.list_(pa.int64(), 2)),
        }
    )
    pq.write_table(table, tmp_path / "rows.parquet", row_group_size=7)
    for shuffle in (False, True):
        one = shard(str(tmp_path), shuffle=shuffle)
        seen = []
        for batch in one.iter_batches(batch_size=6):
            for x, word, gap, flag, pair in zip(*batch.values(), strict=True):
                assert (word, flag, pair.tolist()) == (f"w{x}", x % 2 == 0, [x, -x])
                assert np.isnan(gap) if x % 5 == 0 else gap == x
                seen.append(int(x))
        assert sorted(seen) == list(range(20))
        assert (seen == list(range(20))) != shuffle
        arrow = list(shard(str(tmp_path)).iter_batches(batch_size=6, batch_format="pyarrow"))
        assert pa.concat_tables(arrow).column("word").to_pylist() == [f"w{number}" for number in range(20)]


def test_the_next_row_group_is_read_while_one_is_used_and_few_are_kept(tmp_path: Path):
    pq.write_table(pa.table({"x": np.arange(60)}), tmp_path / "rows.parquet", row_group_size=10)
    one = shard(str(tmp_path), shuffle=True, seed=4)
    files = one._rows
    order = of_epoch(60, 4, 0, files.blocks).blocks.tolist()
    for number, _ in enumerate(one.iter_batches(batch_size=10, prefetch_batches=0)):
        assert set(order[number : number + 2]) <= set(files._open)
        assert len(files._open) <= 3


def test_a_row_group_that_could_not_be_read_is_read_another_time(tmp_path: Path):
    pq.write_table(pa.table({"x": np.arange(10)}), tmp_path / "rows.parquet", row_group_size=5)
    one = shard(str(tmp_path))
    (tmp_path / "rows.parquet").rename(tmp_path / "away")
    with pytest.raises(FileNotFoundError):
        rows(one)
    (tmp_path / "away").rename(tmp_path / "rows.parquet")
    one.set_epoch(0)
    assert rows(one) == list(range(10))


# ---- making ahead ---------------------------------------------------------------------------------------------------


def test_a_slow_item_does_not_keep_those_before_it_from_being_used():
    release = threading.Event()

    def items():
        yield from range(5)
        assert release.wait(30)
        yield 5

    made = prefetched(items(), 1)
    assert [next(made) for _ in range(5)] == list(range(5))
    release.set()
    assert list(made) == [5]


def test_slow_items_are_no_further_ahead_than_asked():
    made: list[int] = []

    def items():
        for number in range(10):
            time.sleep(0.01)
            made.append(number)
            yield number

    used = prefetched(items(), 2)
    for number in used:
        time.sleep(0.05)
        assert len(made) <= number + 4  # the one in use, two that wait, and one that waits for room
