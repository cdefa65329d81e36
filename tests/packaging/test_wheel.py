"""What people get from an index: a small wheel that works in an empty environment."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ASSETS = "shoal/dashboard/static/"
LIMIT = 1_000_000  # bytes of the wheel, without the dashboard's assets

SMOKE = """
from shoal import train, tune


def train_func(config):
    for step in range(config["steps"]):
        with train.checkpoint_dir() as directory:
            (directory / "step").write_text(str(step))
            train.report({"loss": 1 / (step + 1)}, checkpoint=train.Checkpoint(directory))


trainer = train.DataParallelTrainer(
    train_func,
    train_loop_config={"steps": 3},
    scaling_config=train.ScalingConfig(num_workers=2),
    run_config=train.RunConfig(name="smoke"),
)
assert trainer.fit().metrics["training_iteration"] == 3
grid = tune.Tuner(
    lambda config: {"loss": config["x"]}, param_space={"x": tune.grid_search([1, 2])},
    tune_config=tune.TuneConfig(metric="loss", mode="min"), run_config=tune.RunConfig(name="search", verbose=0),
).fit()
assert grid.get_best_result().config == {"x": 1}
"""


def done(*command: str | Path, **more: object) -> str:
    ended = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, timeout=400, check=False, **more
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, made from the source distribution as an index would have it."""
    place = tmp_path_factory.mktemp("dist")
    done(sys.executable, "-m", "build", "--outdir", place, ROOT)
    (made,) = place.glob("*.whl")
    return made


@pytest.mark.timeout(500)
def test_the_wheel_is_small_and_has_what_belongs_in_it(wheel: Path):
    with zipfile.ZipFile(wheel) as opened:
        files = {entry.filename: entry.compress_size for entry in opened.infolist()}
        (metadata,) = (opened.read(name).decode() for name in files if name.endswith("/METADATA"))
    assert "shoal/py.typed" in files
    assert any(name.startswith(ASSETS) for name in files)
    assert not [name for name in files if not name.startswith(("shoal/", "shoal-"))]
    assert sum(size for name, size in files.items() if not name.startswith(ASSETS)) < LIMIT
    assert "License-Expression: Apache-2.0" in metadata and "Classifier: Typing :: Typed" in metadata


@pytest.mark.timeout(500)
def test_the_wheel_installs_into_an_empty_environment_and_works_there(wheel: Path, tmp_path: Path):
    done(sys.executable, "-m", "venv", tmp_path / "venv")
    there = tmp_path / "venv" / "bin"
    done(there / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wheel)
    environment = {**os.environ, "SHOAL_STORAGE_PATH": str(tmp_path / "runs"), "PYTHONPATH": ""}
    (tmp_path / "smoke.py").write_text(SMOKE)
    done(there / "python", tmp_path / "smoke.py", env=environment, cwd=tmp_path)
    assert "shoal" in done(there / "shoal", "--version", env=environment, cwd=tmp_path)
    listed = done(there / "shoal", "runs", env=environment, cwd=tmp_path)
    assert "smoke" in listed and "search" in listed
