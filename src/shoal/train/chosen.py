"""Which of the values that a framework tells are reported, and under which names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class Chosen:
    """Those that were asked for; all by default.

    Parameters
    ----------
    metrics : str, sequence of str or mapping, optional
        Names of values; a mapping gives them other names.
    """

    def __init__(self, metrics: str | Sequence[str] | Mapping[str, str] | None):
        names = [metrics] if isinstance(metrics, str) else metrics or ()
        self._names = dict(names) if isinstance(names, Mapping) else {name: name for name in names}

    def of(self, found: Mapping[str, Any], told: str) -> dict[str, Any]:
        """Return what is reported of what was found; ``told`` says in an error who found it.

        Raises
        ------
        ValueError
            If one that was asked for is not there.
        """
        missing = [name for name in self._names if name not in found]
        if missing:
            raise ValueError(f"metrics has {missing[0]!r}, but {told}: {', '.join(found) or 'none'}")
        return {new: found[old] for old, new in self._names.items()} if self._names else dict(found)
