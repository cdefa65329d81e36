"""Where hosts and workers on other machines are heard: a ROUTER socket of zmq over TCP, with CURVE keys of the run."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import zmq

from shoal._core.messages import Endpoint
from shoal._runtime.guard import Guard
from shoal._worker.stream import FRAME_LIMIT

FRAMES_IN_FLIGHT = 20  # from each peer; more wait with the peer, whose report() then waits too


class NetworkListener:
    """Listens on a free TCP port of an address of this machine."""

    def __init__(self, host: str):
        self._context = zmq.Context(1)
        self.source = self._context.socket(zmq.ROUTER)
        self.source.setsockopt(zmq.ROUTER_HANDOVER, 1)
        self.source.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self.source.setsockopt(zmq.LINGER, 200)
        self.source.setsockopt(zmq.SNDHWM, 100_000)
        self.source.setsockopt(zmq.RCVHWM, FRAMES_IN_FLIGHT)
        self.source.setsockopt(zmq.MAXMSGSIZE, FRAME_LIMIT)
        server_public, server_secret = zmq.curve_keypair()
        client_public, client_secret = zmq.curve_keypair()
        self.guard = Guard(self._context, self.source, client_public)
        self.source.curve_server = True
        self.source.curve_publickey = server_public
        self.source.curve_secretkey = server_secret
        self.source.ipv6 = ":" in host
        place = f"tcp://[{host}]" if ":" in host else f"tcp://{host}"
        port = self.source.bind_to_random_port(place)
        self.endpoint = Endpoint(
            address=f"{place}:{port}",
            token=secrets.token_hex(16),
            server_key=server_public.decode(),
            client_public=client_public.decode(),
            client_secret=client_secret.decode(),
        )

    def receive(self, limit: int) -> Iterator[tuple[bytes, bytes]]:
        """Yield who sent which frame, at most ``limit`` of them, without waiting."""
        for _ in range(limit):
            try:
                name, *_, frame = self.source.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            yield name, frame

    def send(self, name: bytes, frame: bytes) -> None:
        """Send to a peer; nothing happens where it is gone by now."""
        try:
            self.source.send_multipart([name, frame], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise

    def close(self) -> None:
        """Stop listening."""
        self.guard.close()
        self.source.close()
        self._context.term()
