"""The documentation: every block of Python in it runs, and every public name is in its reference."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted(
    page
    for page in [DOCS.parent / "README.pt-BR.md", *DOCS.rglob("*.md")]
    if "```python" in page.read_text() and page.parent.name != "decisions"
)
REFERENCE = "\n".join(page.read_text() for page in (DOCS / "reference").glob("*.md"))
PUBLIC = ("train", "train.torch", "tune", "tune.schedulers", "tune.search", "abc")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS.parent)))
def test_the_blocks_of_a_page_run_one_after_the_other(page: Path, tmp_path: Path):
    script = tmp_path / "page.py"
    script.write_text("\n\n".join(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)))
    ended = subprocess.run(
        [sys.executable, script],
        cwd=tmp_path,
        env={**os.environ, "SHOAL_STORAGE_PATH": str(tmp_path / "runs")},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_name_has_its_place_in_the_reference(module: str):
    public = importlib.import_module(f"shoal.{module}")
    named = set(re.findall(r"^::: [\w.]*?(\w+)$", REFERENCE, re.MULTILINE))
    missing = [
        name
        for name in public.__all__
        if inspect.isroutine(getattr(public, name)) or inspect.isclass(getattr(public, name))
        if getattr(public, name).__name__ not in named
    ]
    assert not missing
