"""A run with a range of workers on a machine whose capacity changes, with real processes."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from workers import rank, wait_for

import shoal
from shoal import train
from shoal._runtime import context
from shoal.engines.local import LocalEngine
from shoal.train import Checkpoint, DataParallelTrainer, Result, RunConfig, ScalingConfig


def train_func(config):
    checkpoint = train.get_checkpoint()
    start = int((checkpoint.path / "step").read_text()) + 1 if checkpoint else 0
    size = train.get_context().get_world_size()
    directory = Path(train.get_context().get_trial_dir())
    step = start
    while step < 3 or not train.collective.broadcast_from_rank_zero(Path(config["enough"]).exists()):
        (directory / "step").write_text(str(step))
        train.report({"step": step, "size": size, "rank": rank()}, checkpoint=Checkpoint(directory))
        step += 1


@pytest.fixture
def engine() -> LocalEngine:
    shoal.init(resources={"slot": 2})
    found = context.engine_for(False)
    assert isinstance(found, LocalEngine)
    yield found
    shoal.shutdown()


def start(enough: Path, workers: tuple[int, int]) -> tuple[threading.Thread, list[Result]]:
    results: list[Result] = []
    scaling = ScalingConfig(
        num_workers=workers,
        resources_per_worker={"slot": 1, "CPU": 0.1},
        elastic_resize_monitor_interval_s=0,
        elastic_room_wait_s=0.2,
    )
    trainer = DataParallelTrainer(
        train_func,
        train_loop_config={"enough": str(enough)},
        scaling_config=scaling,
        run_config=RunConfig(name="elastic", verbose=0),
    )
    thread = threading.Thread(target=lambda: results.append(trainer.fit()), daemon=True)
    thread.start()
    return thread, results


def sizes(path: Path) -> list[int]:
    """Return the sizes of the group that reported so far."""
    file = path / "runs/elastic/metrics.jsonl"
    found: list[int] = []
    for line in file.read_text().splitlines() if file.exists() else []:
        size = int(line.split('"size":')[1].split(",")[0])
        if not found or found[-1] != size:
            found.append(size)
    return found


def test_a_group_grows_and_shrinks_with_the_machine_and_loses_no_step(engine: LocalEngine, tmp_path: Path):
    thread, results = start(tmp_path / "enough", (1, 3))
    wait_for(lambda: sizes(tmp_path) == [2])
    engine.set_capacity(slot=3)
    wait_for(lambda: sizes(tmp_path) == [2, 3])
    engine.set_capacity(slot=1)
    wait_for(lambda: sizes(tmp_path) == [2, 3, 1])
    (tmp_path / "enough").touch()
    thread.join(30)
    (result,) = results
    steps = list(result.metrics_dataframe["step"])
    assert steps == list(range(len(steps)))
    assert [attempt.world_size for attempt in result.attempts] == [2, 3, 1]
    assert all(later.checkpoint > 0 for later in result.attempts[1:])
    assert all(attempt.ended_at is not None for attempt in result.attempts)
    assert "room for 3 workers" in result.attempts[0].reason
    assert "room for 1 workers only" in result.attempts[1].reason
    assert result.attempts[2].reason == "finished"


def test_room_that_another_run_gives_back_is_used(engine: LocalEngine, tmp_path: Path):
    hold = tmp_path / "hold"
    hold.touch()

    def holder(config):
        import time

        while Path(config["hold"]).exists():
            time.sleep(0.01)
        train.report({"done": 1})

    other = DataParallelTrainer(
        holder,
        train_loop_config={"hold": str(hold)},
        scaling_config=ScalingConfig(num_workers=1, resources_per_worker={"slot": 1}),
        run_config=RunConfig(verbose=0),
    )
    first = threading.Thread(target=other.fit, daemon=True)
    first.start()
    wait_for(lambda: list((tmp_path / "runs").glob("*/logs/worker_0.log")))
    thread, results = start(tmp_path / "enough", (1, 2))
    wait_for(lambda: sizes(tmp_path) == [1])
    hold.unlink()
    wait_for(lambda: sizes(tmp_path) == [1, 2])
    (tmp_path / "enough").touch()
    first.join(30)
    thread.join(30)
    assert [attempt.world_size for attempt in results[0].attempts] == [1, 2]


def test_a_capacity_that_is_none_is_refused(engine: LocalEngine):
    with pytest.raises(ValueError, match="slot=-1 is not possible"):
        engine.set_capacity(slot=-1)
