"""Jupyter: a real kernel runs the quick start in cells."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import nbformat
from jupyter_client.manager import start_new_kernel
from nbclient import NotebookClient


def test_cells_train_without_a_guard_and_a_changed_function_is_the_new_one():
    cells = [
        """
from shoal import train
from shoal.train import ScalingConfig, RunConfig
from shoal.train.torch import TorchTrainer
import torch
import torch.nn as nn
""",
        """
def train_func(config):
    model = train.torch.prepare_model(nn.Linear(10, 1))
    for epoch in range(3):
        loss = model(torch.randn(32, 10)).sum()
        loss.backward()
        print("hello from a worker")
        train.report({"loss": loss.item(), "epoch": epoch, "version": 1})
""",
        "result = TorchTrainer(train_func, scaling_config=ScalingConfig(num_workers=2)).fit()",
        "print(result.metrics['epoch'])",
        "def train_func(config):\n    train.report({'version': 2})",
        "print('version', TorchTrainer(train_func).fit().metrics['version'])",
        """
def train_func(config):
    lr = config["lr"]

try:
    TorchTrainer(train_func).fit()
except train.TrainingFailedError as error:
    print(error)
""",
        "import asyncio; asyncio.get_event_loop().is_running()",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in cells])
    NotebookClient(notebook, timeout=100, kernel_name="python3").execute()
    text = ["".join(output.get("text", "") for output in cell.outputs) for cell in notebook.cells]
    assert "[rank 0] hello from a worker" in text[2]
    assert "FINISHED" in pictures(notebook.cells[2])[0]
    assert text[3] == "2\n"
    assert "version 2" in text[5]
    assert 'lr = config["lr"]' in text[6]
    assert "ipykernel" in text[6]
    assert notebook.cells[7].outputs[0]["data"]["text/plain"] == "True"


def pictures(cell: Any) -> list[str]:
    """Return the HTML in a cell's output."""
    return [output["data"]["text/html"] for output in cell.outputs if "text/html" in output.get("data", {})]


def executed(tmp_path: Path, *cells: str) -> list[Any]:
    """Return cells with their outputs, as the saved notebook has them."""
    first = f"import shoal\nfrom shoal import train, tune\nplace = {str(tmp_path)!r}"
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in (first, *cells)])
    NotebookClient(notebook, timeout=100, kernel_name="python3").execute()
    return list(notebook.cells[1:])


def test_a_run_is_one_picture_below_its_own_cell_with_what_was_said_and_no_line_on_the_error_stream(tmp_path: Path):
    fit = """
def train_func():
    for step in range(3):
        train.report({"loss": 1 / (step + 1), "note": "<b>&"})
    if train.get_context().get_world_rank() == 1:
        raise ValueError("<bad> data")

run = train.RunConfig(storage_path=place, name="mine", failure_config=train.FailureConfig(max_failures=1))
trainer = train.DataParallelTrainer(train_func, scaling_config=train.ScalingConfig(num_workers=2), run_config=run)
try:
    trainer.fit()
except train.TrainingFailedError:
    pass
"""
    other_thread = """
import threading
config = train.RunConfig(storage_path=place, name="other")
thread = threading.Thread(target=train.DataParallelTrainer(lambda: train.report({"x": 1}), run_config=config).fit)
thread.start()
thread.join()
"""
    quiet = "train.DataParallelTrainer(lambda: None, run_config=train.RunConfig(storage_path=place, verbose=0)).fit();"
    first, other, silent = executed(tmp_path, fit, other_thread, quiet)
    [picture] = pictures(first)
    assert "mine · FAILED" in picture
    assert "attempt 2" in picture
    assert "0.3333" in picture
    assert "█" in picture  # the curve of the loss
    assert "&lt;bad&gt; data" in picture
    assert "&lt;b&gt;&amp;" in picture
    assert str(tmp_path / "mine") in picture
    assert not [output for output in first.outputs if output.get("name") == "stderr"]
    assert "mine · FAILED" in first.outputs[0]["data"]["text/plain"]
    assert ["other · FINISHED" in picture for picture in pictures(other)] == [True]
    assert silent.outputs == []


def test_a_search_is_a_table_of_trials_with_the_best_one_named(tmp_path: Path):
    search = """
def objective(config):
    if config["x"] == 2:
        raise ValueError("two is not possible")
    print("x is", config["x"])
    tune.report({"score": config["x"] ** 2})

space = {"x": tune.grid_search([1, 2, 3])}
tuner = tune.Tuner(objective, param_space=space, tune_config=tune.TuneConfig(metric="score", mode="max"),
                   run_config=tune.RunConfig(storage_path=place, name="search"))
results = tuner.fit()
"""
    [cell] = executed(tmp_path, search)
    [picture] = pictures(cell)
    assert "search · FINISHED" in picture
    assert "3 trials done" in picture or "3/3 trials done" in picture
    assert "best score 9" in picture
    assert "two is not possible" in picture
    assert picture.count("<tr>") == 4  # the header and three trials
    assert "x is 3" in "".join(output.get("text", "") for output in cell.outputs)


def read(client: Any, until: str) -> str:
    """Return what a kernel shows until this is in it, or it is idle."""
    shown, deadline = "", time.monotonic() + 60
    while time.monotonic() < deadline:
        message = client.get_iopub_msg(timeout=60)
        content = message["content"]
        shown += content.get("text", "") + "".join(content.get("traceback", []))
        shown += content.get("data", {}).get("text/html", "")
        if until in shown or content.get("execution_state") == "idle":
            return shown
    raise AssertionError(f"{until!r} did not come: {shown}")


def test_the_stop_button_ends_a_run_at_its_next_report_with_a_result(tmp_path: Path):
    manager, client = start_new_kernel(kernel_name="python3")
    try:
        client.execute(
            f"""
import time
from shoal import train

def endless():
    step = 0
    while True:
        step += 1
        with train.checkpoint_dir() as directory:
            train.report({{"step": step}}, checkpoint=train.Checkpoint(directory))
        time.sleep(0.05)

run = train.RunConfig(name="mine", storage_path={str(tmp_path)!r})
result = train.DataParallelTrainer(endless, run_config=run).fit()
print("interrupted", result.interrupted, result.metrics["step"] >= 1)
"""
        )
        assert "report" in read(client, "report")
        manager.interrupt_kernel()
        assert "interrupted True True" in read(client, "interrupted True True")
        read(client, "never")  # it is idle, and works on
        client.execute("print(6 * 7)")
        assert "42" in read(client, "42")
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
