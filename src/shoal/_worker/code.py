"""Code that arrived by value: under its own file name, with its source lines, so that a traceback shows them."""

from __future__ import annotations

import linecache
import types
from collections.abc import Mapping
from typing import Any


def rebuilt(arguments: tuple[Any, ...], filename: str) -> types.CodeType:
    """Return the code object that was pickled, with the file name that it had."""
    return types.CodeType(*arguments).replace(co_filename=filename)


def remember_sources(sources: Mapping[str, str]) -> None:
    """Let tracebacks show lines of code that is in no file here, such as a notebook's cell."""
    for filename, source in sources.items():
        linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
