"""What the documentation says is so: examples run, names exist, diagrams and pictures are current."""

from __future__ import annotations

import ast
import doctest
import importlib
import importlib.util
import pkgutil
import re
from pathlib import Path

import pytest

import shoal
from shoal._core.states import diagram

ROOT = Path(__file__).parents[2]
ARCHITECTURE = (ROOT / "docs/architecture.md").read_text()
README = (ROOT / "README.md").read_text()


def modules() -> list[str]:
    found = pkgutil.walk_packages(shoal.__path__, "shoal.")
    return ["shoal", *(m.name for m in found if not m.name.endswith("__main__"))]


@pytest.mark.parametrize(
    "name", [name for name in modules() if ">>>" in Path(importlib.util.find_spec(name).origin).read_text()]
)  # type: ignore[union-attr, arg-type]
def test_examples_in_docstrings_run(name: str):
    result = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert result.attempted > 0
    assert result.failed == 0


def test_the_diagram_of_states_is_drawn_from_the_table():
    assert f"```mermaid\n{diagram()}\n```" in ARCHITECTURE


@pytest.mark.parametrize("place", sorted(set(re.findall(r"`(shoal/[\w/]+\.py(?::\w+)?)`", ARCHITECTURE))))
def test_every_place_that_the_walks_name_is_there(place: str):
    file, _, name = place.partition(":")
    tree = ast.parse((ROOT / "src" / file).read_text())
    defined = {n.name for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.ClassDef))}
    assert not name or name in defined


@pytest.mark.parametrize("block", range(len(re.findall(r"```python\n(.*?)```", README, re.DOTALL))))
def test_the_blocks_of_the_readme_run(
    block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    source = re.findall(r"```python\n(.*?)```", README, re.DOTALL)[block]
    exec(compile(source, f"README block {block}", "exec"), {"__name__": "__main__"})
    assert re.search(r"Final loss: [\d.]+|checkpoint: Checkpoint\(|'lr': [\d.]+", capsys.readouterr().out)


@pytest.mark.parametrize(
    "document", sorted(str(p.relative_to(ROOT)) for p in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
)
def test_links_lead_somewhere(document: str):
    text = (ROOT / document).read_text()
    for target in re.findall(r"\]\((?!https?://)([^)#]+)", text):
        assert ((ROOT / document).parent / target).exists(), target


def test_the_specification_s_quick_start_runs_as_written(capsys: pytest.CaptureFixture[str]):
    specification = ROOT.parent / "shared/spec/ray-train.pt-BR.md"
    if not specification.exists():
        pytest.skip(f"the specification is not beside this checkout, at {specification}")
    source = next(
        b for b in re.findall(r"```python\n(.*?)```", specification.read_text(), re.DOTALL) if "Final loss" in b
    )
    source = (
        source.replace("import ray\n", "import shoal\n")
        .replace("ray", "shoal")
        .replace("use_gpu=True", "use_gpu=False")
    )
    exec(compile(source, "quick start", "exec"), {"__name__": "__main__"})
    assert "Final loss: " in capsys.readouterr().out


def test_importing_shoal_is_light():
    import subprocess
    import sys

    source = (
        "import sys, threading; import shoal; from shoal import train; import shoal.train as t; "
        "heavy = {'torch', 'numpy', 'pandas', 'zmq', 'rich', 'fsspec', 'psutil'} & set(sys.modules); "
        "print(sorted(heavy), threading.active_count())"
    )
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[] 1"


def test_every_name_of_the_plug_in_table_loads():
    from shoal import _plugins

    for kind, names in _plugins.PLUGINS.items():
        for name in names:
            assert isinstance(_plugins.load(kind, name), type)
    with pytest.raises(ValueError, match="there is no engine named 'slurn'; there are: inline, launched, local"):
        _plugins.load("engine", "slurn")
