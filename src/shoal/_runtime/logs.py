"""The output of workers: one plain file a rank, and the lines of a rank for the console."""

from __future__ import annotations

import os
from pathlib import Path

from shoal._runtime.files import write_all


class Logs:
    """``logs/worker_<rank>.log``: the bytes that each rank wrote, as they came.

    Hosts send output in batches, so a file is opened for each batch: ten thousand ranks need no ten thousand
    descriptors.
    """

    def __init__(self, directory: Path):
        self._parent = directory

    @property
    def _directory(self) -> Path:
        return self._parent / "logs"

    def path(self, rank: int) -> Path:
        """Return the log file of a rank."""
        return self._directory / f"worker_{rank}.log"

    def create(self, rank: int) -> None:
        """Make the log file of a rank, so that whoever looks for it finds it, also where nothing is printed."""
        self.write(rank, b"")

    def write(self, rank: int, data: bytes) -> None:
        """Append to the log of a rank."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        try:
            file = os.open(self.path(rank), flags, 0o666)
        except FileNotFoundError:  # the first output of the run
            self._directory.mkdir()
            file = os.open(self.path(rank), flags, 0o666)
        try:
            write_all(file, data)
        finally:
            os.close(file)

    def tail(self, rank: int, count: int) -> list[str]:
        """Return the last lines of a rank's log."""
        try:
            with open(self.path(rank), "rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - 4096))
                return file.read().decode("utf-8", "replace").splitlines()[-count:]
        except OSError:
            return []


class LineSplitter:
    """Makes lines of the bytes of one rank, whatever pieces they come in. Nothing is merged or left out."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[str]:
        """Return the lines that are complete now. A carriage return alone, as of progress bars, ends a line too."""
        *lines, self._rest = (self._rest + data).replace(b"\r\n", b"\n").split(b"\n")
        return [_shown(line) for line in lines]

    def rest(self) -> list[str]:
        """Return what came after the last line break."""
        rest, self._rest = self._rest, b""
        return [_shown(rest)] if rest else []


def _shown(line: bytes) -> str:
    # What a terminal would still show of a line that a progress bar has written over and over.
    return line.decode("utf-8", "replace").rstrip("\r").rsplit("\r", 1)[-1]
