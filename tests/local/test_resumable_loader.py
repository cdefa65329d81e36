"""A data loader that goes on in the middle of an epoch, on the same and on another number of workers."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, SequentialSampler
from workers import fit

from shoal import train
from shoal._worker import session as sessions
from shoal.train import Checkpoint, FailureConfig, ScalingConfig
from shoal.train.torch import TorchTrainer


def everybody(mine: list[int]) -> list[int]:
    session = sessions.current("everybody")
    gathered = session.gather(session.next_collective("test"), json.dumps(mine).encode())
    return [value for share in gathered for value in json.loads(share)]


def one_epoch_with_a_death(make_loader: Any, deaths: Path, at: int) -> None:
    """Train one epoch and note every sample that any rank has seen; a rank dies once in the middle."""
    loader = train.torch.prepare_data_loader(make_loader(), resumable=True)
    done: list[int] = []
    if checkpoint := train.get_checkpoint():
        with checkpoint.as_directory() as directory:
            state = json.loads(Path(directory, "state.json").read_text())
        loader.load_state_dict(state["loader"])
        done = state["done"]
    rank, size = train.get_context().get_world_rank(), train.get_context().get_world_size()
    for batch in loader:
        done += everybody([int(x) for x in batch.flatten()])
        with train.checkpoint_dir() as directory:
            if rank == 0:
                (directory / "state.json").write_text(json.dumps({"loader": loader.state_dict(), "done": done}))
            train.report({"seen": len(done)}, checkpoint=Checkpoint(directory))
        if rank == size - 1 and len(done) >= at and not deaths.exists():
            deaths.touch()
            os._exit(3)
    train.report({"order": done, "world": size, "next": loader.state_dict()})


def torch_fit(function: Any, workers: int | tuple[int, int], **more: Any) -> train.Result:
    return TorchTrainer(
        function,
        scaling_config=ScalingConfig(num_workers=workers, elastic_resize_monitor_interval_s=3600),
        run_config=train.RunConfig(verbose=0, failure_config=FailureConfig(max_failures=2)),
        **more,
    ).fit()


@pytest.mark.parametrize("processes", [0, 2])
def test_every_sample_of_the_epoch_is_seen_once_though_a_worker_died_in_it(tmp_path: Path, processes: int):
    def train_func():
        torch.manual_seed(train.get_context().get_world_rank())  # the order must not hang on it
        loader = lambda: DataLoader(torch.arange(99), batch_size=7, shuffle=True, num_workers=processes)  # noqa: E731
        one_epoch_with_a_death(loader, tmp_path / "died", at=40)

    result = torch_fit(train_func, 2)
    assert (tmp_path / "died").exists() and len(result.attempts) == 2
    seen = result.metrics["order"]
    assert set(Counter(seen).values()) == {1}
    assert len(seen) == 98  # of 99 samples a last round of one is left out
    assert seen != sorted(seen)
    assert result.metrics["next"] == {"epoch": 1, "position": 0, "count": 99}


def test_the_state_of_three_workers_is_gone_on_with_by_two(tmp_path: Path):
    def train_func(config):
        loader = lambda: DataLoader(torch.arange(96), batch_size=4, shuffle=True)  # noqa: E731
        if config["workers"] == 3:
            (tmp_path / "died").touch()  # nobody dies: the run of three is left in the middle instead
            prepared = train.torch.prepare_data_loader(loader(), resumable=True)
            done: list[int] = []
            for step, batch in enumerate(prepared):
                done += everybody([int(x) for x in batch])
                if step == 2:
                    break
            with train.checkpoint_dir() as directory:
                state = {"loader": prepared.state_dict(), "done": done}
                (directory / "state.json").write_text(json.dumps(state))
                train.report({}, checkpoint=Checkpoint(directory))
        else:
            one_epoch_with_a_death(loader, tmp_path / "died", at=10**9)

    first = torch_fit(train_func, 3, train_loop_config={"workers": 3})
    second = torch_fit(train_func, 2, train_loop_config={"workers": 2}, resume_from_checkpoint=first.checkpoint)
    assert second.metrics["world"] == 2
    assert Counter(second.metrics["order"]) == Counter(range(96))


def test_batches_of_the_users_own_are_shared_out_and_gone_on_with(tmp_path: Path):
    def train_func():
        sampler = BatchSampler(SequentialSampler(range(24)), 3, False)

        class Reversed(BatchSampler):
            def __iter__(self):
                return reversed(list(super().__iter__()))

        batches = Reversed(sampler.sampler, 3, False)
        one_epoch_with_a_death(lambda: DataLoader(torch.arange(24), batch_sampler=batches), tmp_path / "died", at=7)

    result = torch_fit(train_func, 2)
    assert (tmp_path / "died").exists()
    assert Counter(result.metrics["order"]) == Counter(range(24))


def test_each_epoch_has_another_order_and_a_given_up_one_is_over():
    def train_func():
        loader = train.torch.prepare_data_loader(
            DataLoader(torch.arange(8), batch_size=2, shuffle=True), resumable=True
        )
        assert len(loader) == 4
        first = [batch.tolist() for batch in loader]
        for _ in loader:
            break
        third = [batch.tolist() for batch in loader]
        loader.set_epoch(0)
        train.report({"other": first != third, "again": first == [batch.tolist() for batch in loader]})

    metrics = fit(train_func, 1, trainer=TorchTrainer).metrics
    assert metrics["other"] and metrics["again"]


def test_a_stateful_loader_of_torchdata_stays_one():
    stateful = pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is a development requirement")

    def train_func():
        loader = train.torch.prepare_data_loader(stateful.StatefulDataLoader(torch.arange(8), batch_size=2))
        next(iter(loader))
        train.report(loader.state_dict())

    assert fit(train_func, 2, trainer=TorchTrainer).metrics["position"] == 4


class Numbers(IterableDataset[int]):
    def __iter__(self):
        return iter(range(8))


@pytest.mark.parametrize(
    ("loader", "words"),
    [
        (
            lambda: DataLoader(Numbers(), batch_size=2),
            "resumable=True: Numbers is a stream, which has no positions to go on from",
        ),
        (lambda: DataLoader(torch.arange(4), batch_size=None), "batch_size=None; give it the size of a batch"),
    ],
)
def test_what_cannot_go_on_is_told(loader: Any, words: str):
    def train_func():
        train.torch.prepare_data_loader(loader(), resumable=True)

    with pytest.raises(train.WorkerGroupError, match=words):
        fit(train_func, 1, trainer=TorchTrainer)


def test_a_state_of_other_data_is_told():
    def train_func():
        loader = train.torch.prepare_data_loader(DataLoader(torch.arange(8), batch_size=2), resumable=True)
        loader.load_state_dict({"epoch": 0, "position": 2, "count": 9})

    with pytest.raises(train.WorkerGroupError, match="the state is of 9 samples, but the loader has 8"):
        fit(train_func, 1, trainer=TorchTrainer)
