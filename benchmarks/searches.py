"""Trials a second, in fresh and in reused processes; what 10,000 of them cost; how long a decision takes."""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.harness import PEERS_PYTHON, Measurement
from shoal import tune
from shoal._core import jsonl, search
from shoal._core.experiment import Experiment, SearchSpec
from shoal._core.trials import Trial
from shoal.tune.schedulers import ASHAScheduler
from shoal.tune.search import BasicVariantGenerator

HERE = Path(__file__).parent
SPACE = {"x": tune.uniform(0, 1)}


def objective(config: dict) -> None:
    """Report once."""
    tune.report({"loss": (config["x"] - 0.3) ** 2})


def decided(config: dict) -> None:
    """Report often where each report waits for a decision, and say how long that took."""
    seconds = []
    for step in range(300):
        began = time.perf_counter()
        tune.report({"loss": config["x"], "seconds": seconds[-1] if seconds else 0.0, "step": step})
        seconds.append(time.perf_counter() - began)


for function in (objective, decided):  # as in a script: it travels by value, and its workers import nothing for it
    function.__module__ = "__main__"


def fit(function, count: int, **settings) -> tune.ResultGrid:
    return tune.Tuner(
        function,
        param_space=SPACE,
        tune_config=tune.TuneConfig(
            **{"metric": "loss", "mode": "min", "num_samples": count, "max_concurrent_trials": 2, **settings}
        ),
        run_config=tune.RunConfig(verbose=0),
    ).fit()


def rate(count: int, reuse: bool) -> float:
    """Return trials a second from ``fit()`` to its return, with the host there already."""
    fit(objective, 4, reuse_workers=reuse)
    began = time.perf_counter()
    grid = fit(objective, count, reuse_workers=reuse)
    seconds = time.perf_counter() - began
    assert grid.num_terminated == count
    return count / seconds


def long_search(count: int) -> tuple[float, float]:
    """Return how much more a trial costs at the end than at the beginning, and the driver's growth in kB a trial."""
    source = f"""
import json, psutil
from benchmarks.searches import fit, objective
fit(objective, 200, reuse_workers=True)
before = psutil.Process().memory_full_info().uss
grid = fit(objective, {count}, reuse_workers=True)
print(json.dumps([grid.experiment_path, (psutil.Process().memory_full_info().uss - before) / {count} / 1000]))
"""
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    path, growth = json.loads(done.stdout.splitlines()[-1])
    ends = [
        record["at"]
        for record in jsonl.lines((Path(path) / "journal.jsonl").read_bytes())
        if record["record"] == "TrialOver"
    ]
    part = count // 10
    return (ends[-1] - ends[-1 - part]) / (ends[part] - ends[0]), growth


def simulated(count: int) -> float:
    """Return how many seconds the decisions about so many trials take, without the trials."""
    scheduler = ASHAScheduler(metric="loss", mode="min", max_t=16, reduction_factor=4)
    searcher = BasicVariantGenerator(random_state=1)
    searcher.set_search_properties("loss", "min", SPACE, num_samples=count)
    spec = SearchSpec(search_id="s", metric="loss", mode="min", num_samples=count, max_concurrent=64)
    machine = Experiment(spec, searcher, scheduler, None)
    running: dict[str, tuple[Trial, int]] = {}
    began = time.perf_counter()
    events: list = [search.Begin(wall=0.0)]
    while not machine.over:
        if not events:
            name, (trial, n) = next(iter(running.items()))
            running[name] = (trial, n + 1)
            row = {"training_iteration": n + 1, "time_total_s": 1.0, "loss": trial.config["x"] / (n + 1)}
            events.append(search.TrialReported(trial_id=name, n=n + 1, row=row))
        for command in machine.handle(events.pop(), time.perf_counter()):
            if isinstance(command, search.StartTrial):
                running[command.trial_id] = (machine.table[command.trial_id], 0)
                events.append(search.TrialPlaced(trial_id=command.trial_id))
            elif isinstance(command, search.Decide) and command.stop:
                del running[command.trial_id]
                events.append(search.TrialEnded(trial_id=command.trial_id, completed=False))
            elif isinstance(command, search.Decide):
                running[command.trial_id] = running.pop(command.trial_id)
    return time.perf_counter() - began


def peer(script: str, python: str) -> float | None:
    """Return trials a second of a peer, where it is installed."""
    if not Path(python).exists():
        return None
    done = subprocess.run(
        [python, str(HERE / "peers" / script)], capture_output=True, text=True, check=False, timeout=400
    )
    lines = done.stdout.split()
    return float(lines[-1]) if done.returncode == 0 and lines else None


@contextlib.contextmanager
def storage_in_memory() -> Iterator[None]:
    """Keep runs in memory, where there is such a place.

    A trial makes seven inodes. To make one took from 0.02 to 0.4 ms on one and the same ext4 file system, by what was
    deleted there in the seconds before: the difference is the disk's share.
    """
    memory = Path("/dev/shm")
    before = os.environ.get("SHOAL_STORAGE_PATH")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as storage:
        os.environ["SHOAL_STORAGE_PATH"] = storage
        yield
    if before is None:
        del os.environ["SHOAL_STORAGE_PATH"]
    else:
        os.environ["SHOAL_STORAGE_PATH"] = before


def measure(quick: bool) -> Iterator[Measurement]:
    """Measure trials, kept on a disk as people keep them; and in memory, to tell the disk's share from shoal's."""
    count = 200 if quick else 1000
    times = 1 if quick else 3
    ray = None if quick else peer("ray_tune.py", str(PEERS_PYTHON))
    bound = peer("optuna_alone.py", sys.executable)
    yield Measurement(
        "trials a second, a fresh process each",
        "/s",
        [rate(count, reuse=False) for _ in range(times)],
        peer="Ray Tune" if ray else "",
        peer_samples=[ray] if ray else None,
        budget=">= 200 /s",
    )
    yield Measurement(
        "trials a second, reused processes",
        "/s",
        [rate(count, reuse=True) for _ in range(times)],
        peer="Optuna in process" if bound else "",
        peer_samples=[bound] if bound else None,
        budget=">= 1000 /s",
    )
    with storage_in_memory():
        for kind, reuse in (("a fresh process each", False), ("reused processes", True)):
            rates = [rate(count, reuse) for _ in range(times)]
            yield Measurement(f"trials a second, {kind}, runs in memory", "/s", rates)
    grid = fit(decided, 2, scheduler=ASHAScheduler(max_t=1000, grace_period=1000), max_concurrent_trials=1)
    waits = [value for result in grid for value in result.metrics_dataframe["seconds"][2:]]
    yield Measurement(
        "report() that waits for ASHA's decision", "ms", [1000 * statistics.median(waits)], budget="<= 1 ms"
    )
    many = 2000 if quick else 10_000
    slower, growth = long_search(many)
    yield Measurement(f"cost of a trial, last / first tenth of {many}", "x", [slower], budget="<= 1.2")
    yield Measurement(f"memory of the driver a trial, of {many}", "kB", [growth], budget="<= 5 kB")
    simulated_count = 10_000 if quick else 100_000
    yield Measurement(
        f"decisions about {simulated_count:,} simulated trials", "s", [simulated(simulated_count)], budget="<= 60 s"
    )
