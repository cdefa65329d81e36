"""Where hosts and workers on this machine are heard: a unix socket in a directory of the user's own.

Each connection is the kernel's alone, without a thread or a handshake: a worker that lives for some milliseconds pays
for each of them.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import selectors
import socket
import tempfile
from pathlib import Path

from shoal._core.messages import Endpoint
from shoal._runtime.guard import Guard
from shoal._worker.connection import UNIX
from shoal._worker.stream import Stream

UNIX_PATH_LIMIT = 100  # bytes; the kernel allows 107
LINGER = 0.2  # seconds


class Peer:
    """One that has connected; its name is the first frame that it sends."""

    def __init__(self, sock: socket.socket):
        self.stream = Stream(sock)
        self.name: bytes | None = None


class LocalListener:
    """Listens on a socket in a private directory."""

    guard: Guard | None = None

    def __init__(self) -> None:
        parent = tempfile.gettempdir()
        if len(os.fsencode(parent)) > UNIX_PATH_LIMIT - 20:
            parent = "/tmp"
        self._directory = tempfile.TemporaryDirectory(prefix="shoal-", dir=parent, ignore_cleanup_errors=True)
        path = str(Path(self._directory.name, "s"))
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.setblocking(False)
        self._socket.bind(path)
        self._socket.listen(socket.SOMAXCONN)
        self._peers: dict[bytes, Peer] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._socket, selectors.EVENT_READ)
        self.source = self._selector.fileno()
        self.endpoint = Endpoint(address=f"{UNIX}{path}", token=secrets.token_hex(16))

    def receive(self, limit: int) -> list[tuple[bytes, bytes]]:
        """Return who sent which frame, without waiting; of each peer as much as the kernel has kept of it.

        Hosts come last: what they say of a worker's end is heard after what the worker said.
        """
        ready = [(key.data, events) for key, events in self._selector.select(0)]
        peers = [peer for peer, _ in ready if peer is not None]
        if len(peers) < len(ready):
            peers += self._accept()
        for peer, events in ready:
            if peer is not None and events & selectors.EVENT_WRITE and peer.stream.flush():
                self._watch(peer, selectors.EVENT_READ)
        peers.sort(key=lambda peer: (peer.name or b"").startswith(b"h/"))
        return [said for peer in peers for said in self._read(peer)]

    def send(self, name: bytes, frame: bytes) -> None:
        """Send to a peer; nothing happens where it is gone by now."""
        peer = self._peers.get(name)
        if peer is not None and not peer.stream.send(frame):
            self._watch(peer, selectors.EVENT_READ | selectors.EVENT_WRITE)

    def close(self) -> None:
        """Stop listening."""
        self._selector.unregister(self._socket)
        self._socket.close()
        for key in list(self._selector.get_map().values()):
            key.data.stream.close(LINGER)
        self._selector.close()
        self._directory.cleanup()

    def _accept(self) -> list[Peer]:
        peers = []
        with contextlib.suppress(BlockingIOError):
            while True:
                sock, _ = self._socket.accept()
                peer = Peer(sock)
                self._selector.register(peer.stream.descriptor, selectors.EVENT_READ, peer)
                peers.append(peer)
        return peers

    def _read(self, peer: Peer) -> list[tuple[bytes, bytes]]:
        said = []
        for frame in peer.stream.receive():
            if peer.name is None:
                peer.name = frame
                self._peers[frame] = peer  # instead of an earlier one of this name, which is read to its end
            else:
                said.append((peer.name, frame))
        if peer.stream.closed:
            self._selector.unregister(peer.stream.descriptor)
            peer.stream.close()
            if peer.name is not None and self._peers.get(peer.name) is peer:
                del self._peers[peer.name]
        return said

    def _watch(self, peer: Peer, events: int) -> None:
        self._selector.modify(peer.stream.descriptor, events, peer)
