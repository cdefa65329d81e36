"""What this process uses of its machine."""

from __future__ import annotations

import os
import resource
import sys
import time

from shoal._core.messages import Alive

PAGE = os.sysconf("SC_PAGE_SIZE")


class Meter:
    """Measures the process in which it is made."""

    def __init__(self) -> None:
        self._before = (time.monotonic(), time.process_time())

    def read(self) -> Alive:
        """Return what was used since the last time."""
        now, cpu = time.monotonic(), time.process_time()
        seconds = max(now - self._before[0], 1e-3)
        share = (cpu - self._before[1]) / seconds
        self._before = (now, cpu)
        return Alive(cpu=round(share, 3), memory=_memory(), gpu_memory=_gpu_memory())


def _memory() -> int:
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * PAGE
    except OSError:  # not Linux: the most that it ever was
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _gpu_memory() -> int:
    cuda = getattr(sys.modules.get("torch"), "cuda", None)  # never imported for this
    begun = getattr(cuda, "is_initialized", None)  # also of a torch that is just being imported
    return int(cuda.memory_reserved()) if cuda is not None and begun is not None and begun() else 0
