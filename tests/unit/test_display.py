"""What a person sees: lines in a pipe, a panel on a terminal."""

from __future__ import annotations

import os
import pty
import sys
import textwrap
from pathlib import Path

import pytest

from shoal._runtime.display import LineDisplay, brief, elapsed, sparkline
from shoal._runtime.logs import LineSplitter

ROW = {"loss": 0.123456, "training_iteration": 3, "timestamp": 1.0, "time_total_s": 65.0, "attempt": 1}


def test_lines_are_few_and_the_last_report_is_always_shown(capsys: pytest.CaptureFixture[str]):
    display = LineDisplay((0,))
    display.on_run_start("digits", "/runs/digits")
    display.on_state("RUNNING", 1, {0: "training", 1: "training"})
    for n in range(1, 101):
        display.on_report({**ROW, "training_iteration": n})
    display.on_run_end("FINISHED", "")
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "shoal: run digits in /runs/digits",
        "shoal: report 1  loss 0.1235  (2 workers, 1:05)",
        "shoal: report 100  loss 0.1235  (2 workers, 1:05)",
        "shoal: digits FINISHED",
    ]


def test_the_output_of_ranks_is_cut_into_lines_whatever_pieces_it_comes_in():
    splitter = LineSplitter()
    assert splitter.feed(b"one\ntw") == ["one"]
    assert splitter.feed(b"o\r\n\xff\nprogress 1%\rprogress 2%\n") == ["two", "\ufffd", "progress 2%"]
    assert splitter.feed(b"rest") == []
    assert splitter.rest() == ["rest"]
    assert splitter.rest() == []


def test_numbers_are_short():
    assert [brief(v) for v in (0.000012345, 12345.678, 1e7, 1e300, 3, True, "x" * 100)] == [
        "1.234e-05",
        "1.235e+04",
        "10,000,000",
        "1e+300",
        "3",
        "True",
        "x" * 57 + "...",
    ]
    assert [elapsed(s) for s in (5, 65, 3725)] == ["0:05", "1:05", "1:02:05"]


def test_a_curve_leaves_out_what_is_not_finite():
    assert sparkline([0.0, float("nan"), 0.5, float("inf"), 1.0]) == "▁▅█"
    assert sparkline([1.0]) == ""
    assert sparkline([2.0, 2.0]) == "▁▁"


def test_a_terminal_gets_a_panel_and_the_lines_of_workers_above_it(tmp_path: Path):
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            """
            import time
            from shoal import train
            from shoal.train import DataParallelTrainer, RunConfig, ScalingConfig
            def train_func():
                for step in range(5):
                    print("step [bold]", step)
                    train.report({"loss": 1 / (step + 1)})
                    time.sleep(0.1)
            DataParallelTrainer(train_func, scaling_config=ScalingConfig(num_workers=2),
                                run_config=RunConfig(name="shown")).fit()
            """
        )
    )
    shown = bytearray()

    def read(descriptor: int) -> bytes:
        data = os.read(descriptor, 4096)
        shown.extend(data)
        return data

    os.environ["TERM"] = "xterm-256color"
    os.environ["COLUMNS"] = "100"
    status = pty.spawn([sys.executable, str(script)], read)
    text = shown.decode()
    assert os.waitstatus_to_exitcode(status) == 0, text
    assert "[rank 0] step [bold] 4" in text
    assert "shown · FINISHED" in text
    assert "2 finished" in text
    assert "▁" in text
