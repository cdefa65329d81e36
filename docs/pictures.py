"""Draws the picture of the progress display in the README: ``python docs/pictures.py``."""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console

from shoal._runtime.display import LiveDisplay
from shoal._runtime.screen import Screen, panel


def main() -> None:
    """Feed the display what the demo reports, and save what it shows."""
    display = LiveDisplay((0,), Screen())
    display.on_run_start("digits", "~/shoal_results/digits")
    display.on_state("RUNNING", 1, {0: "training", 1: "training"})
    losses = [2.16, 1.18, 0.45, 0.28, 0.21, 0.17, 0.15, 0.12, 0.1, 0.09]
    for epoch, loss in enumerate(losses, 1):
        row = {
            "epoch": epoch,
            "loss": loss,
            "test_accuracy": 0.84 + 0.14 * (1 - loss / 2.2),
            "samples_per_s": 6000 + 37 * ((7 * epoch) % 11),
            "training_iteration": epoch,
        }
        display.on_report(row)
    console = Console(record=True, width=88, file=io.StringIO())
    console.print(panel(display.picture()))
    console.save_svg(str(Path(__file__).parent / "progress.svg"), title="python examples/digits.py")


if __name__ == "__main__":
    main()
