"""``python -m benchmarks [--quick] [NAME ...]``: measure, print a table, write JSON."""

from __future__ import annotations

import argparse
import importlib
import os
import tempfile

from benchmarks.harness import Measurement, save, table

PARTS = ("startup", "reporting", "throughput", "memory", "checkpoints", "searches", "frameworks", "data", "scale")


def main() -> None:
    """Run the parts that were asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="speed of this machine, against peers")
    parser.add_argument("parts", nargs="*", default=PARTS, help=f"which parts: {', '.join(PARTS)}")
    parser.add_argument("--quick", action="store_true", help="fewer samples, and no slow peers")
    arguments = parser.parse_args()
    measurements: list[Measurement] = []
    with tempfile.TemporaryDirectory() as storage:
        os.environ["SHOAL_STORAGE_PATH"] = storage
        for part in arguments.parts:
            measurements += importlib.import_module(f"benchmarks.{part}").measure(arguments.quick)
            print(f"{part} measured", flush=True)
    print(table(measurements))
    print(f"written to {save(measurements)}")


if __name__ == "__main__":
    main()
