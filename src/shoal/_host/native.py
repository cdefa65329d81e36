"""Native stacks of workers, read from outside by py-spy where it is installed: they answer also when Python cannot."""

from __future__ import annotations

import os
import queue
import shutil
import subprocess
import sys
import threading
from dataclasses import dataclass

LIMIT = 10.0  # seconds for one process


@dataclass(frozen=True)
class Dump:
    """The stacks of a worker as text; empty if they could not be had."""

    run_id: str
    attempt: int
    rank: int
    text: str


class StackReader:
    """Reads stacks in a thread of its own. ``descriptor`` becomes readable when there is something to take."""

    def __init__(self) -> None:
        self.descriptor, self._write = os.pipe()
        os.set_blocking(self.descriptor, False)
        self._done: queue.SimpleQueue[Dump] = queue.SimpleQueue()

    def ask(self, run_id: str, attempt: int, pids: dict[int, int]) -> None:
        """Have the stacks of these processes read, by rank."""
        arguments = (run_id, attempt, pids)
        threading.Thread(target=self._read, args=arguments, name="shoal-stacks", daemon=True).start()

    def take(self) -> list[Dump]:
        """Return what has been read."""
        try:
            os.read(self.descriptor, 4096)
        except BlockingIOError:
            return []
        found = []
        while not self._done.empty():
            found.append(self._done.get())
        return found

    def _read(self, run_id: str, attempt: int, pids: dict[int, int]) -> None:
        for rank, pid in pids.items():
            self._done.put(Dump(run_id, attempt, rank, native_stack(pid)))
            os.write(self._write, b"x")


def native_stack(pid: int) -> str:
    """Return the stacks of a process as py-spy tells them; empty without py-spy, or where it is not allowed to look."""
    program = shutil.which("py-spy") or shutil.which("py-spy", path=os.path.dirname(sys.executable))
    if program is None:
        return ""
    for options in (["--native"], []):  # not every build of py-spy can read native frames
        try:
            done = subprocess.run(
                [program, "dump", *options, "--pid", str(pid)],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=LIMIT / 2,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            continue
        if done.returncode == 0:
            return done.stdout
    return ""
