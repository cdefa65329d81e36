"""From ``fit()`` to the first line of the user's function, cold and warm, to a DDP model, and back to the caller."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.harness import PEERS_PYTHON, Measurement, repeated
from shoal import train
from shoal.train import FailureConfig, RunConfig, ScalingConfig
from shoal.train.torch import TorchTrainer

HERE = Path(__file__).parent


def train_func(config: dict) -> float:
    first_line = time.time()
    import torch

    model = train.torch.prepare_model(torch.nn.Linear(10, 1))
    ready = time.time()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(3):
        model(torch.randn(4, 10)).sum().backward()
        optimizer.step()
    train.report({"first_line": first_line, "ready": ready, "stepped": time.time()})
    train.collective.barrier()
    return time.time()


def fit() -> dict[str, float]:
    """Return how many seconds after ``fit()`` each thing happened."""
    trainer = TorchTrainer(
        train_func, scaling_config=ScalingConfig(num_workers=2), run_config=RunConfig(verbose=0, log_to_driver=None)
    )
    began = time.time()
    result = trainer.fit()
    returned = time.time()
    marks = {name: result.metrics[name] - began for name in ("first_line", "ready", "stepped")}
    return {**marks, "return": returned - result.return_value}


def dying(config: dict) -> None:
    import torch

    now = time.time()
    model = train.torch.prepare_model(torch.nn.Linear(10, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model(torch.randn(4, 10)).sum().backward()
    optimizer.step()
    stepped = time.time()
    context = train.get_context()
    train.report({"line": now, "step": stepped, "attempt": context.get_attempt(), "died": 0.0})
    if context.get_attempt() == 1:
        train.collective.barrier()
        if context.get_world_rank() == 1:
            Path(config["file"]).write_text(repr(time.time()))
            os.kill(os.getpid(), signal.SIGKILL)
        torch.distributed.barrier()


def restart(directory: Path) -> tuple[float, float]:
    """Return seconds from the SIGKILL of one of two workers to the restarted function's first line and DDP step."""
    file = directory / "died"
    trainer = TorchTrainer(
        dying,
        train_loop_config={"file": str(file)},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(verbose=0, log_to_driver=None, failure_config=FailureConfig(max_failures=1)),
    )
    metrics = trainer.fit().metrics
    died = float(file.read_text())
    return metrics["line"] - died, metrics["step"] - died


def cold() -> float:
    """Return seconds from ``fit()`` to the first line in a driver whose host is not there yet."""
    done = subprocess.run([sys.executable, str(HERE / "cold.py")], capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])


def torch_import() -> float:
    source = "import time; t = time.time(); import torch, torch.distributed, torch._dynamo; print(time.time() - t)"
    return float(subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True).stdout)


def torchrun_start() -> float:
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "2",
        str(HERE / "peers/torchrun_start.py"),
    ]
    began = time.time()
    # Its exit code is not looked at: now and then a process of it dies after the steps, while it takes its group down.
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return float(done.stdout.split()[-1]) - began


def ray_start() -> dict[str, float] | None:
    """Return what Ray Train needs for the same, where it is installed."""
    if not PEERS_PYTHON.exists():
        return None
    command = [str(PEERS_PYTHON), str(HERE / "peers/ray_train.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return json.loads(lines[-1]) if lines else None


def shoal_import() -> float:
    source = "import time; t = time.time(); import shoal; from shoal import train; print(time.time() - t)"
    return float(subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True).stdout)


def measure(quick: bool) -> Iterator[Measurement]:
    import tempfile

    times = 3 if quick else 7
    ray = None if quick else ray_start()
    fit()  # the host is there, with torch loaded
    fits = [fit() for _ in range(10 if quick else 20)]
    ray_samples = [ray["first_line"]] if ray else None
    warm = [f["first_line"] for f in fits]
    yield Measurement("fit() to first line, 2 workers, warm", "s", warm, "ray", ray_samples, "<= 0.15 s")
    launches = repeated(torchrun_start, times)
    stepped = [f["stepped"] for f in fits]
    yield Measurement("fit() to DDP model ready, warm", "s", [f["ready"] for f in fits], budget="<= 0.25 s")
    yield Measurement("fit() to three DDP steps, warm", "s", stepped, "torchrun", launches)
    yield Measurement("last function's end to fit()'s return", "s", [f["return"] for f in fits], budget="<= 0.05 s")
    imports, colds = repeated(torch_import, times), repeated(cold, times)
    yield Measurement("fit() to first line, 2 workers, cold", "s", colds, "import torch", imports, "<= import+0.4 s")
    yield Measurement("import shoal", "s", repeated(shoal_import, times), budget="<= 0.1 s")
    with tempfile.TemporaryDirectory() as directory:
        restarts = [restart(Path(directory)) for _ in range(times)]
    ray_restart = [ray["restart"]] if ray else None
    yield Measurement(
        "kill -9 of a worker to first line again", "s", [r[0] for r in restarts], "ray", ray_restart, "<= 0.3 s"
    )
    yield Measurement("kill -9 of a worker to a DDP step again", "s", [r[1] for r in restarts], budget="<= 0.5 s")
