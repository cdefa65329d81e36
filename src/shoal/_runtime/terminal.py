"""The terminal's own habits, where they get in the way of a live display."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

try:
    import termios
except ImportError:  # not a POSIX system
    termios = None  # type: ignore[assignment]


@contextlib.contextmanager
def silent_control_characters() -> Iterator[None]:
    """Keep the terminal from writing ``^C`` where a panel stands, which would leave a line of it behind."""
    if termios is None or not sys.stdin.isatty():
        yield
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    quiet = termios.tcgetattr(descriptor)
    quiet[3] &= ~termios.ECHOCTL
    termios.tcsetattr(descriptor, termios.TCSANOW, quiet)
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSANOW, before)
