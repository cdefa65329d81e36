"""The commands of the documentation: the command line takes each of them, and those that write files write them."""

from __future__ import annotations

import importlib
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from shoal.cli import MODULES
from shoal.cli.app import app

for module in MODULES:
    importlib.import_module(f"shoal.cli.{module}")

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("README*.md"), *(page for page in (ROOT / "docs").rglob("*.md") if page.parent.name != "decisions")]
BLOCK = re.compile(r"```(?:bash|sh|console)\n(.*?)```", re.DOTALL)
INLINE = re.compile(r"`(shoal [^`]+)`")


def commands(text: str) -> list[str]:
    """Return the commands of shoal in some lines."""
    parts = [part.split(" # ")[0].strip(" $&") for line in text.splitlines() for part in line.split("&&")]
    return [part for part in parts if re.match(r"shoal [a-z]", part) and "…" not in part]


def taken(command: str) -> None:
    """Have the command line look at a command's arguments; raise what it says of them."""
    name, *arguments = shlex.split(command)[1:]
    group = typer.main.get_command(app)
    group.commands[name].make_context(f"shoal {name}", arguments)  # type: ignore[attr-defined]


TEXTS = [page.read_text() for page in PAGES]
SHOWN = sorted({c for text in TEXTS for block in BLOCK.findall(text) for c in commands(block.replace("\\\n", " "))})
NAMED = sorted({c for text in TEXTS for inline in INLINE.findall(text) for c in commands(" ".join(inline.split()))})
RUN = [command for command in SHOWN if command.startswith("shoal deploy ")]


def test_there_are_commands_to_look_at():
    assert len(SHOWN) > 20
    assert len(NAMED) > 20
    assert len(RUN) >= 4


@pytest.mark.parametrize("command", SHOWN)
def test_a_command_of_a_page_is_taken(command: str):
    taken(command)


@pytest.mark.parametrize("command", NAMED)
def test_a_command_that_a_sentence_names_has_no_option_that_there_is_not(command: str):
    try:
        taken(command)
    except Exception as error:
        if type(error).__name__ != "MissingParameter":  # the sentence names the command alone
            raise


@pytest.mark.parametrize("command", RUN)
def test_a_command_that_writes_files_writes_them(command: str, tmp_path: Path):
    (tmp_path / "train.py").write_text("print('trained')\n")
    ended = subprocess.run(
        [sys.executable, "-m", "shoal", *shlex.split(command)[1:]],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert len(list(tmp_path.iterdir())) > 1
