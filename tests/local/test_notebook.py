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
    assert "FINISHED" in text[2]
    assert text[3] == "2\n"
    assert "version 2" in text[5]
    assert 'lr = config["lr"]' in text[6]
    assert "ipykernel" in text[6]
    assert notebook.cells[7].outputs[0]["data"]["text/plain"] == "True"


def read(client: Any, until: str) -> str:
    """Return what a kernel shows until this is in it, or it is idle."""
    shown, deadline = "", time.monotonic() + 60
    while time.monotonic() < deadline:
        message = client.get_iopub_msg(timeout=60)
        content = message["content"]
        shown += content.get("text", "") + "".join(content.get("traceback", []))
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
