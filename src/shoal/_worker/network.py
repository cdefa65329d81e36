"""Connections with a supervisor on another machine, over TCP, encrypted with the keys of its run.

Imported only where there is one: zmq's libraries make every fork of a process dearer that has loaded them.
"""

from __future__ import annotations

import zmq

from shoal._core.messages import Endpoint


class NetworkConnection:
    """A connection that is made again by itself where it breaks."""

    closed = False

    def __init__(self, endpoint: Endpoint, name: str, frames: int, context: zmq.Context[zmq.Socket[bytes]] | None):
        self._own_context = zmq.Context(1) if context is None else None
        self._behind = False
        self.source = dealer(context or self._own_context, name)  # type: ignore[arg-type]
        self.source.setsockopt(zmq.SNDHWM, frames)
        connect(self.source, endpoint)

    def send(self, frame: bytes) -> bool:
        try:
            self.source.send(frame, zmq.NOBLOCK)
        except zmq.Again:
            self._behind = True
            return False
        self._behind = False
        return True

    def flush(self) -> bool:
        return True

    def receive(self) -> list[bytes]:
        try:
            return [self.source.recv(zmq.NOBLOCK)]
        except zmq.Again:
            return []

    def wait(self, seconds: float, wake: int = -1) -> None:
        poller = zmq.Poller()
        poller.register(self.source, zmq.POLLIN | zmq.POLLOUT if self._behind else zmq.POLLIN)
        if wake >= 0:
            poller.register(wake, zmq.POLLIN)
        poller.poll(round(seconds * 1000))

    def close(self, linger: float) -> None:
        self.source.close(linger=round(linger * 1000))
        if self._own_context is not None:
            self._own_context.term()  # waits for what is on its way


def dealer(context: zmq.Context[zmq.Socket[bytes]], identity: str) -> zmq.Socket[bytes]:
    """Return a socket under a name, on which options can be set before it connects."""
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.IDENTITY, identity.encode())
    return socket


def connect(socket: zmq.Socket[bytes], endpoint: Endpoint) -> None:
    """Connect with a supervisor, encrypted with the keys of its run."""
    if "[" in endpoint.address:
        socket.ipv6 = True
    socket.curve_serverkey = endpoint.server_key.encode()
    socket.curve_publickey = endpoint.client_public.encode()
    socket.curve_secretkey = endpoint.client_secret.encode()
    socket.connect(endpoint.address)
