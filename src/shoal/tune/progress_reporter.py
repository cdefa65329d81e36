"""Progress reporters, for scripts that give them: the display of a search chooses by itself what it shows."""

from __future__ import annotations

from typing import Any


class ProgressReporter:
    """Taken where Ray takes one, and without effect: a search shows its table, its best trials and what fails anyhow.

    ``verbose`` says how much of it; a :class:`shoal.tune.Callback` is told all that a reporter would be.
    """

    def __init__(self, *arguments: Any, **settings: Any):
        self.settings = settings


class CLIReporter(ProgressReporter):
    """For a terminal."""


class JupyterNotebookReporter(ProgressReporter):
    """For a notebook."""
