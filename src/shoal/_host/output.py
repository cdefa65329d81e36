"""The pipe into which one worker, and everything it starts, writes its standard output and error."""

from __future__ import annotations

import contextlib
import fcntl
import os

PIPE_SIZE = 1 << 20  # bytes, so that a worker can go on writing between two batches
READ_SIZE = 1 << 18


class Output:
    """Both ends of the pipe until the worker is started, then the reading end."""

    def __init__(self) -> None:
        self.read_end, self.write_end = os.pipe()
        os.set_blocking(self.read_end, False)
        if hasattr(fcntl, "F_SETPIPE_SZ"):
            with contextlib.suppress(OSError):  # the user's quota for pipes is used up; the usual 64 KiB do as well
                fcntl.fcntl(self.write_end, fcntl.F_SETPIPE_SZ, PIPE_SIZE)
        self.open = True
        self._held = b""

    @property
    def held(self) -> bool:
        """Whether bytes wait to be sent again."""
        return bool(self._held)

    def started(self) -> None:
        """The worker has its end now."""
        os.close(self.write_end)

    def take(self) -> bytes:
        """Return what was written, at most a batch of it, without waiting."""
        if self._held:
            data, self._held = self._held, b""
            return data
        if not self.open:
            return b""
        try:
            data = os.read(self.read_end, READ_SIZE)
        except BlockingIOError:
            return b""
        if not data:
            self.open = False
        return data

    def put_back(self, data: bytes) -> None:
        """Keep what could not be sent."""
        self._held = data

    def close(self) -> None:
        """Close the reading end; a process that still writes gets a broken pipe."""
        self.open = False
        os.close(self.read_end)
