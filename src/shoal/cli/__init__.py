"""The command ``shoal``: clusters, jobs and their files."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from shoal._core.errors import ShoalError
from shoal._version import __version__

# Each module has ``add(commands)``, which says what its commands take and what function carries them out.
MODULES = ("shoal.cli.cluster", "shoal.cli.jobs", "shoal.cli.deploy")


def main(arguments: Sequence[str] | None = None) -> int:
    """Carry one command out and return its exit code: 0 done, 1 not possible, 2 wrong arguments."""
    parser = argparse.ArgumentParser(prog="shoal", description="train and search on one machine or many")
    parser.add_argument("--version", action="version", version=f"shoal {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for module in MODULES:
        importlib.import_module(module).add(commands)
    options = parser.parse_args(arguments)
    try:
        return int(options.run(options) or 0)
    except ShoalError as error:
        print(f"shoal {options.command}: {error}", file=sys.stderr)
    except ImportError as error:
        print(f"shoal {options.command}: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        return 130
    return 1
