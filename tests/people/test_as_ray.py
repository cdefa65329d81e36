"""Scripts that were written for Ray run as they are."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from scripts import done

SCRIPTS = Path(__file__).parents[1] / "ray_scripts"


def run(script: Path, storage: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "shoal", "run", "--as-ray", str(script), *arguments],
        cwd=storage,
        env={**os.environ, "SHOAL_STORAGE_PATH": str(storage)},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


@pytest.mark.parametrize("script", sorted(SCRIPTS.glob("*.py")), ids=lambda script: script.stem)
def test_a_script_written_for_ray_runs_unmodified(script: Path, tmp_path: Path):
    ended = run(script, tmp_path)
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert "done" in ended.stdout.splitlines()[-1], ended.stdout


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("import ray.data", "ray.data has no counterpart in shoal: give torch data sets"),
        ("from ray import serve", "ray.serve has no counterpart in shoal: shoal does not serve models"),
        ("from ray.train import SyncConfig", "ray.train.SyncConfig has no counterpart in shoal; docs/migrate"),
        ("import ray\n@ray.remote\ndef f(): pass", "ray.remote has no counterpart in shoal: shoal trains and searches"),
        ("import ray.util.queue", "ray.util has no counterpart in shoal; docs/migrate-from-ray.md has"),
        ("from ray._private import worker", "ray._private has no counterpart"),
        ("from ray.train import ScalingConfg", "no counterpart in shoal; did you mean ray.train.ScalingConfig?"),
        ("from ray.tune import with_resource", "no counterpart in shoal; did you mean ray.tune.with_resources?"),
    ],
)
def test_what_has_no_counterpart_fails_at_the_import_with_a_sentence(line: str, sentence: str, tmp_path: Path):
    script = tmp_path / "script.py"
    script.write_text(line)
    ended = run(script, tmp_path)
    assert ended.returncode == 1
    assert sentence in ended.stderr.splitlines()[-1]


def test_a_script_that_is_not_there_is_said(tmp_path: Path):
    command = [sys.executable, "-m", "shoal.as_ray", "nope.py"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (1, f"there is no script 'nope.py' in {tmp_path}\n")


def test_arguments_and_the_directory_of_a_script_are_its_own_and_its_run_is_resumed_likewise(tmp_path: Path):
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "beside.py").write_text("from ray import train\nvalue = 7\n")
    script = tmp_path / "code" / "script.py"
    script.write_text(
        "import os, sys\n"
        "from ray.train import DataParallelTrainer, RunConfig\n"
        "import beside\n"
        "def train_func():\n"
        "    assert os.path.exists('there'), 'not yet'\n"
        "    beside.train.report({'value': beside.value})\n"
        "assert sys.argv[1:] == ['--epochs', '3'], sys.argv\n"
        "print(DataParallelTrainer(train_func, run_config=RunConfig(name='mine')).fit().metrics['value'])\n"
    )
    failed = run(script, tmp_path, "--", "--epochs", "3")
    assert "not yet" in failed.stderr
    (tmp_path / "there").touch()
    assert done("resume", "mine", storage=tmp_path).endswith("7\n")


def test_ray_that_was_imported_before_is_not_replaced():
    code = "import sys, types; sys.modules['ray'] = types.ModuleType('ray'); import shoal.as_ray as a; a.install()"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert "ray was imported already" in ended.stderr


def test_every_name_that_the_guide_calls_the_same_is_there():
    guide = (SCRIPTS.parents[1] / "docs" / "migrate-from-ray.md").read_text()
    table = guide.partition("## Names that are the same")[2].partition("## Names that differ")[0]
    named = [re.findall(r"`([\w.]+)`", row) for row in table.splitlines() if row.startswith("| `ray")]
    assert len(named) > 20
    lines = [f"from {module} import {', '.join(names)}" for module, *names in named]
    code = "\n".join(["from shoal import as_ray", "as_ray.install()", *lines])
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=110)
    assert ended.returncode == 0, ended.stderr[-2000:]
