"""How a process ended, from what the kernel says of it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from shoal._core.messages import ExitInfo


def exit_info(pid: int, status: int, max_rss: int, *, out_of_memory: bool) -> ExitInfo:
    """Return what a wait status means. ``max_rss`` is as ``getrusage`` has it: KiB on Linux, bytes on macOS.

    ``out_of_memory`` says whether the kernel killed for memory since the last such exit; it only ever uses SIGKILL.
    """
    peak = max_rss * (1 if sys.platform == "darwin" else 1024)
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return ExitInfo(pid=pid, signal=number, peak_memory=peak, out_of_memory=out_of_memory and number == 9)
    return ExitInfo(pid=pid, code=os.WEXITSTATUS(status), peak_memory=peak)


def out_of_memory_kills() -> int:
    """Return how many processes the kernel has killed for memory so far: in our control group, else on the machine."""
    for path in (_control_group_events(), Path("/proc/vmstat")):
        try:
            for line in path.read_text().splitlines():
                name, _, count = line.partition(" ")
                if name == "oom_kill":
                    return int(count)
        except (OSError, ValueError):
            continue
    return 0


def _control_group_events() -> Path:
    try:
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            if line.startswith("0::"):
                return Path("/sys/fs/cgroup" + line[3:], "memory.events")
    except OSError:
        pass
    return Path("/nonexistent")
