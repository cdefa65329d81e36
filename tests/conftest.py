"""What every test shares: a place for runs, and the promise that nothing is left behind."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import shoal

sys.path.insert(0, str(Path(__file__).parent))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--thorough", action="store_true", help="also the slow tests that are marked as thorough")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is marked as thorough, unless it was asked for or named by itself."""
    named = any("::" in argument for argument in config.args)
    if config.getoption("--thorough") or named:
        return
    out = [item for item in items if item.get_closest_marker("thorough")]
    config.hook.pytest_deselected(items=out)
    items[:] = [item for item in items if not item.get_closest_marker("thorough")]


@pytest.fixture(autouse=True)
def _storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep runs that name no storage path inside the test's own directory."""
    monkeypatch.setenv("SHOAL_STORAGE_PATH", str(tmp_path / "runs"))


@pytest.fixture(scope="session", autouse=True)
def _nothing_left_behind() -> Iterator[None]:
    yield
    shoal.shutdown()
    me = psutil.Process(os.getpid())
    left = [p for p in me.children(recursive=True) if "resource_tracker" not in " ".join(p.cmdline())]
    assert not left, f"the tests left processes running: {left}"
