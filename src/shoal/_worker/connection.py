"""How a host or a worker connects with a supervisor."""

from __future__ import annotations

from pathlib import Path

import zmq

from shoal._core.messages import Endpoint


def dealer(context: zmq.Context[zmq.Socket[bytes]], identity: str) -> zmq.Socket[bytes]:
    """Return a socket under a name, on which options can be set before it connects."""
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.IDENTITY, identity.encode())
    return socket


def kept_task(directory: str, run_id: str, name: str) -> Path:
    """Return where a host keeps a large task for the workers of a run."""
    return Path(directory, f"{run_id}.task-{name}")


def connect(socket: zmq.Socket[bytes], endpoint: Endpoint) -> None:
    """Connect with a supervisor, encrypted where it listens on a network."""
    if "[" in endpoint.address:
        socket.ipv6 = True
    if endpoint.server_key:
        socket.curve_serverkey = endpoint.server_key.encode()
        socket.curve_publickey = endpoint.client_public.encode()
        socket.curve_secretkey = endpoint.client_secret.encode()
    socket.connect(endpoint.address)
