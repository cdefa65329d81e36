"""How a host or a worker connects with a supervisor: over a unix socket on its machine, or encrypted over a network."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from shoal._core.messages import Endpoint
from shoal._worker.stream import Stream

if TYPE_CHECKING:
    import zmq

UNIX = "unix://"


class Connection(Protocol):
    """One end of a conversation in frames, for one thread. None of its methods but ``wait`` and ``close`` waits."""

    @property
    def source(self) -> int | zmq.Socket[bytes]:
        """What a poller of zmq is to watch."""
        ...

    @property
    def closed(self) -> bool:
        """Whether the other end is gone for good; then there is nothing to watch."""
        ...

    def send(self, frame: bytes) -> bool:
        """Take a frame; false where the other end is so far behind that it must be tried again later."""
        ...

    def flush(self) -> bool:
        """Send what was taken and has not gone yet; return whether all went."""
        ...

    def receive(self) -> list[bytes]:
        """Return frames that have arrived; call again until there are none, or when the source is ready again."""
        ...

    def wait(self, seconds: float, wake: int = -1) -> None:
        """Wait for something to read, or room for what waits to go, or for the descriptor ``wake`` to be readable."""
        ...

    def close(self, linger: float) -> None:
        """Close this end; what was taken may take so many seconds to go."""
        ...


class LocalConnection:
    """A connection with the supervisor on this machine. The first frame says who this is."""

    def __init__(self, path: str, name: str):
        self._stream = Stream.connect(path)
        self._stream.send(name.encode())
        self.source = self._stream.descriptor
        self.flush = self._stream.flush
        self.receive = self._stream.receive
        self.wait = self._stream.wait
        self.close = self._stream.close

    @property
    def closed(self) -> bool:
        return self._stream.closed

    def send(self, frame: bytes) -> bool:
        if not self._stream.flush():
            return False
        self._stream.send(frame)
        return True


def connection(
    endpoint: Endpoint, name: str, frames: int, context: zmq.Context[zmq.Socket[bytes]] | None = None
) -> Connection:
    """Connect with a supervisor under a name. Over a network, so many ``frames`` at most are on their way.

    With a ``context`` of its own, which is the default there, such a connection is closed when all has gone that was
    taken; in one that is shared, this happens behind it.
    """
    if endpoint.address.startswith(UNIX):
        return LocalConnection(endpoint.address.removeprefix(UNIX), name)
    from shoal._worker.network import NetworkConnection

    return NetworkConnection(endpoint, name, frames, context)


def kept_task(directory: str, run_id: str, name: str) -> Path:
    """Return where a host keeps a large task for the workers of a run."""
    return Path(directory, f"{run_id}.task-{name}")
