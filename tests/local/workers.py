"""Training functions for the tests, and the short way to run one."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shoal import train
from shoal.train import DataParallelTrainer, FailureConfig, Result, RunConfig, ScalingConfig


def fit(
    function: Callable[..., Any],
    workers: int = 2,
    config: dict[str, Any] | None = None,
    *,
    max_failures: int = 0,
    trainer: Callable[..., DataParallelTrainer] = DataParallelTrainer,
    resources: dict[str, float] | None = None,
    **run: Any,
) -> Result:
    """Train with plain functions; ``run`` are fields of the ``RunConfig``."""
    run = {"verbose": 0, "log_to_driver": None, "failure_config": FailureConfig(max_failures=max_failures), **run}
    return trainer(
        function,
        train_loop_config=config,
        scaling_config=ScalingConfig(num_workers=workers, resources_per_worker=resources),
        run_config=RunConfig(**run),
    ).fit()


def rank() -> int:
    return train.get_context().get_world_rank()


def wait_for(condition: Callable[[], Any], seconds: float = 30.0) -> Any:
    """Wait until something is so, with a deadline that says what was waited for."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.01)
    raise AssertionError(f"not so after {seconds} s: {condition}")


def start_script(tmp_path: Path, source: str, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    """Start a driver of its own from source text."""
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(source))
    return subprocess.Popen(
        [sys.executable, str(script), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "SHOAL_STORAGE_PATH": str(tmp_path / "runs"), **environment},
    )


def run_script(tmp_path: Path, source: str, *arguments: str, **environment: str) -> str:
    """Run a driver of its own to its end and return what it printed."""
    process = start_script(tmp_path, source, *arguments, **environment)
    output, _ = process.communicate(timeout=100)
    assert process.returncode == 0, output
    return output
