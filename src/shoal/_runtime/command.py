"""How this program was started, so that a run can be gone on with by starting it once more."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

OVERRIDES = "SHOAL_OVERRIDES"  # the variable in which the options of `shoal run` travel to a script


def this_command() -> dict[str, Any] | None:
    """Return the command of this program and where it was given; ``None`` where it cannot be given again."""
    arguments = list(sys.orig_argv[1:])
    if "ipykernel" in sys.modules or not arguments or arguments == ["-"]:
        return None  # a notebook, a prompt, or a script from standard input
    return {"python": sys.executable, "arguments": arguments, "directory": _here(), "overrides": overrides()}


def overrides() -> dict[str, Any]:
    """Return what `shoal run` was asked for; nothing where the script was started by itself."""
    return dict(json.loads(os.environ.get(OVERRIDES) or "{}"))


def _here() -> str:
    try:
        return os.getcwd()
    except OSError:  # it was removed meanwhile
        return "/"
