"""What a process puts right about itself before it is a worker: environment, import path, streams, signals, seeds."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import ctypes
import os
import signal
import sys
import types
from typing import TextIO

import msgspec

from shoal._core.messages import Boot

PR_SET_PDEATHSIG = 1
set_signal = _signal.signal  # that of signal makes enums too, which takes a worker a tenth of a millisecond
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None  # loaded once, before any fork


class Birth(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that one new worker process needs to know."""

    boot: Boot
    environment: dict[str, str]
    directory: str
    import_path: list[str]
    arguments: list[str]
    preload: list[str]
    fork: bool


_streams: tuple[TextIO, TextIO] | None = None


def make_ready() -> None:
    """Do in a process that forks what each of its children would do otherwise."""
    global _streams
    _streams = (_text_stream(1), _text_stream(2))


def become(birth: Birth) -> None:
    """Make this process look to the user's function as if the driver's script had been started in it.

    The environment was set before: a process that forks has that of its next child.
    """
    die_with_parent()
    sys.path[:] = birth.import_path
    sys.argv[:] = birth.arguments
    if "SHOAL_AS_RAY" in birth.environment:
        from shoal._worker import ray_names

        ray_names.install()
    # A child that the function starts with multiprocessing's spawn must not import the program of the host.
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        os.chdir(birth.directory)
    except OSError:
        os.makedirs(birth.boot.scratch, exist_ok=True)
        os.chdir(birth.boot.scratch)
    sys.stdout, sys.stderr = _streams or (_text_stream(1), _text_stream(2))
    if "numpy" in sys.modules:  # forks share its state; Python's own random module reseeds by itself
        sys.modules["numpy"].random.seed()


def set_environment(wanted: dict[str, str]) -> None:
    """Have exactly these variables. Most are the same already, and to set them all takes half a millisecond."""
    there = dict(os.environ)
    for name in there.keys() - wanted.keys():
        del os.environ[name]
    for name, value in wanted.items() - there.items():
        os.environ[name] = value


def _text_stream(descriptor: int) -> TextIO:
    return open(descriptor, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)


def die_with_parent() -> None:
    """Have the kernel end this process as soon as the process that forked it is gone (Linux only)."""
    if _LIBC is not None:
        _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
