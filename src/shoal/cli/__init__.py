"""The command ``shoal``: runs and searches, the dashboard, clusters and their jobs."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

# Each declares its commands when it is imported; they are listed in this order.
MODULES = ("running", "looking", "asking", "keeping", "dashboard", "doctor", "cluster", "jobs", "deploy")


def main(arguments: Sequence[str] | None = None) -> int:
    """Carry one command out and return its exit code: 0 done, 1 not possible, 2 wrong arguments, 130 interrupted."""
    from shoal.cli.app import CLUSTERS, app

    for module in MODULES:
        importlib.import_module(f"shoal.cli.{module}")
    app.registered_commands.sort(key=lambda one: one.rich_help_panel == CLUSTERS)
    try:
        app(arguments, prog_name="shoal")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    return 0
