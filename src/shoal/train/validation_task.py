"""How a checkpoint is scored that is reported: what a worker knows of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shoal._worker.plain import plain


@dataclass(frozen=True)
class ValidationTaskConfig:
    """How one checkpoint is scored.

    Parameters
    ----------
    fn_kwargs : mapping, optional
        What the validation function gets besides the checkpoint: plain data, since it is kept with the run.
    timeout_s : float, optional
        After how many seconds it is given up; never by default.
    """

    fn_kwargs: Mapping[str, Any] | None = None
    timeout_s: float | None = None

    def __post_init__(self) -> None:
        if self.timeout_s is not None and not self.timeout_s > 0:
            raise ValueError(f"timeout_s={self.timeout_s!r}: give more than 0 seconds, or None")

    def described(self) -> dict[str, Any]:
        """Return this as plain data; raise ``TypeError`` that names what is not."""
        return {"fn_kwargs": plain(dict(self.fn_kwargs or {})), "timeout_s": self.timeout_s}
