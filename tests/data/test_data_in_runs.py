"""Data sets of a trainer, in real workers: shared out, gone on with after a failure by other numbers of workers."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from workers import fit

from shoal import train, tune
from shoal.train import Checkpoint, DataConfig, DataParallelTrainer, FailureConfig, RunConfig, ScalingConfig


def trained(function: Any, data: Any, workers: Any = 2, **settings: Any) -> train.Result:
    return DataParallelTrainer(
        function,
        datasets={"train": data},
        scaling_config=ScalingConfig(num_workers=workers),
        run_config=RunConfig(verbose=0, log_to_driver=None, failure_config=FailureConfig(max_failures=1)),
        **settings,
    ).fit()


def test_each_worker_gets_its_share_under_its_name():
    def train_func():
        shard = train.get_dataset_shard("train")
        assert train.get_dataset_shard() is shard
        with pytest.raises(KeyError, match="there is no data set 'valid'; there are 'train'"):
            train.get_dataset_shard("valid")
        seen = [batch["x"].tolist() for batch in shard.iter_torch_batches(batch_size=2)]
        train.report({"seen": train.collective.broadcast_from_rank_zero(seen), "rank": 0})

    assert trained(train_func, {"x": np.arange(8)}).metrics["seen"] == [[0, 1], [4, 5]]


def test_without_data_sets_that_is_said():
    def train_func():
        with pytest.raises(KeyError, match="there are none: give the trainer datasets="):
            train.get_dataset_shard("train")

    fit(train_func, 1)


def test_every_row_of_the_epoch_counts_once_where_workers_fail_in_its_middle(tmp_path: Path):
    """What was trained after the checkpoint is lost with it, and is seen again; each row counts once."""

    def train_func():
        context, shard = train.get_context(), train.get_dataset_shard("train")
        rank, done = context.get_world_rank(), []
        if checkpoint := train.get_checkpoint():
            with checkpoint.as_directory() as directory:
                kept = json.loads(Path(directory, "state.json").read_text())
            shard.load_state_dict(kept["shard"])
            done = kept["done"]
        assert shard.epoch == 0
        for batch in shard.iter_batches(batch_size=5):
            done += [x for share in everybody(batch["x"].tolist()) for x in share]
            with train.checkpoint_dir() as directory:
                if rank == 0:
                    state = {"shard": shard.state_dict(), "done": done}
                    Path(directory, "state.json").write_text(json.dumps(state))
                train.report({"done": len(done), "world": context.get_world_size()}, checkpoint=Checkpoint(directory))
            if rank == context.get_world_size() - 1 and not Path(tmp_path, "died").exists() and len(done) >= 40:
                Path(tmp_path, "died").touch()
                os._exit(3)
        train.report({"rows": sorted(done), "world": context.get_world_size()})

    def everybody(mine: list[int]) -> list[list[int]]:
        from shoal._worker import session as sessions

        session = sessions.current("everybody")
        gathered = session.gather(session.next_collective("test"), json.dumps(mine).encode())
        return [json.loads(share) for share in gathered]

    config = DataConfig(shuffle=True, seed=5)
    result = trained(train_func, {"x": np.arange(103)}, workers=3, dataset_config=config)
    assert Path(tmp_path, "died").exists()
    assert len(result.attempts) == 2
    rows = Counter(result.metrics["rows"])
    assert set(rows.values()) == {1}
    assert len(rows) in (102, 103)  # of 103 rows a last round of one is left out


def test_mistakes_are_told_by_the_trainer():
    with pytest.raises(ValueError, match="has 2 rows for 3 workers"):
        trained(print, {"x": np.arange(2)}, workers=3)
    with pytest.raises(TypeError, match=r"datasets is a list; give a mapping: datasets=\{'train': \.\.\.\}"):
        DataParallelTrainer(print, datasets=[1])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="dataset_config names 'valid', but datasets has train"):
        trained(print, {"x": np.arange(9)}, dataset_config=DataConfig(shuffle=["valid"]))


def test_trials_of_a_trainer_share_its_data_sets():
    def train_func(config):
        shard = train.get_dataset_shard("train")
        train.report({"loss": float(config["w"] * sum(batch["x"].sum() for batch in shard.iter_batches()))})

    trainer = DataParallelTrainer(train_func, datasets={"train": {"x": np.arange(4)}})
    grid = tune.Tuner(
        trainer,
        param_space={"w": tune.grid_search([1, 2])},
        tune_config=tune.TuneConfig(metric="loss", mode="min"),
        run_config=RunConfig(verbose=0),
    ).fit()
    assert [result.metrics["loss"] for result in grid] == [6.0, 12.0]
