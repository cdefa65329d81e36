"""The supervisor's end of every conversation: one ROUTER socket for all hosts and workers of a run.

On one machine it is a unix socket in a private directory; between machines it is TCP with CURVE keys made for the run.
A peer is heard only after a hello with the run's token.
"""

from __future__ import annotations

import os
import secrets
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import zmq

from shoal._core.messages import Batch, Endpoint, FromHost, FromWorker, HostHello, ToHost, ToWorker, WorkerHello
from shoal._runtime.guard import Guard

FRAMES_IN_FLIGHT = 20  # from each peer; more wait with the peer, whose report() then waits too
FRAME_LIMIT = 2**30  # bytes
UNIX_PATH_LIMIT = 100  # bytes; the kernel allows 107


class HostPeer(NamedTuple):
    """A host, by its name."""

    host: str


class WorkerPeer(NamedTuple):
    """A worker of one attempt of one run."""

    run_id: str
    attempt: int
    rank: int


Peer = HostPeer | WorkerPeer


def identity(peer: Peer) -> bytes:
    """Return the name under which a peer connects."""
    if isinstance(peer, HostPeer):
        return f"h/{peer.host}".encode()
    return f"w/{peer.run_id}/{peer.attempt}/{peer.rank}".encode()


def peer_of(name: bytes) -> Peer:
    """Return the peer of an identity; raise ``ValueError`` if it is none of ours."""
    kind, _, rest = name.decode("utf-8", "replace").partition("/")
    if kind == "h" and rest:
        return HostPeer(rest)
    if kind == "w":
        run_id, attempt, rank = rest.rsplit("/", 2)
        return WorkerPeer(run_id, int(attempt), int(rank))
    raise ValueError(f"not a peer: {name!r}")


class Channel:
    """Listens for hosts and workers. Belongs to one thread, except for :attr:`endpoint`."""

    def __init__(self, host: str | None = None):
        """Listen on a private unix socket, or on a free TCP port of the address ``host``."""
        self._context = zmq.Context(1)
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._socket.setsockopt(zmq.LINGER, 200)
        self._socket.setsockopt(zmq.SNDHWM, 100_000)
        self._socket.setsockopt(zmq.RCVHWM, FRAMES_IN_FLIGHT)
        self._socket.setsockopt(zmq.MAXMSGSIZE, FRAME_LIMIT)
        self._guard: Guard | None = None
        self._directory: tempfile.TemporaryDirectory[str] | None = None
        self.endpoint = self._listen_tcp(host) if host else self._listen_unix()
        self._known: set[Peer] = set()
        self._waiting: defaultdict[Peer, list[bytes]] = defaultdict(list)
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode_batch = msgspec.msgpack.Decoder(Batch).decode
        self._decode_host: msgspec.msgpack.Decoder[FromHost] = msgspec.msgpack.Decoder(FromHost)

    @property
    def strangers(self) -> Guard | None:
        """Who says when somebody was refused; ``None`` on a private unix socket."""
        return self._guard

    @property
    def socket(self) -> zmq.Socket[bytes]:
        """The socket, for a poller."""
        return self._socket

    def receive(self, limit: int) -> Iterator[tuple[Peer, FromHost | FromWorker]]:
        """Yield what has arrived, at most ``limit`` frames, without waiting."""
        for _ in range(limit):
            try:
                name, *_, frame = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                peer = peer_of(name)
                messages = self._decode_batch(frame).messages if isinstance(peer, WorkerPeer) else None
                heard = messages if messages is not None else [self._decode_host.decode(frame)]
            except (ValueError, msgspec.DecodeError):
                continue  # not ours: an unknown peer is not answered
            for message in heard:
                if self._is_known(peer, message):
                    yield peer, message

    def send(self, peer: Peer, message: ToHost | ToWorker) -> None:
        """Send, or keep until the peer has said hello. A peer that is gone by now is not an error."""
        frame = self._encode(message)
        if peer in self._known:
            self._send(peer, frame)
        else:
            self._waiting[peer].append(frame)

    def forget_hosts(self) -> None:
        """The hosts stop serving this supervisor. One that serves it again says hello again, and what is sent to it
        waits until then: its old connection may be open still, and would swallow it.
        """
        self._known = {peer for peer in self._known if not isinstance(peer, HostPeer)}
        for peer in [peer for peer in self._waiting if isinstance(peer, HostPeer)]:
            del self._waiting[peer]

    def close(self) -> None:
        """Stop listening."""
        if self._guard is not None:
            self._guard.close()
        self._socket.close()
        self._context.term()
        if self._directory:
            self._directory.cleanup()

    def _is_known(self, peer: Peer, message: FromHost | FromWorker) -> bool:
        if isinstance(message, (HostHello, WorkerHello)):
            if not secrets.compare_digest(message.token, self.endpoint.token):
                return False
            self._known.add(peer)
            for frame in self._waiting.pop(peer, []):
                self._send(peer, frame)
        return peer in self._known

    def _send(self, peer: Peer, frame: bytes) -> None:
        try:
            self._socket.send_multipart([identity(peer), frame], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise

    def _listen_unix(self) -> Endpoint:
        parent = tempfile.gettempdir()
        if len(os.fsencode(parent)) > UNIX_PATH_LIMIT - 20:
            parent = "/tmp"
        self._directory = tempfile.TemporaryDirectory(prefix="shoal-", dir=parent, ignore_cleanup_errors=True)
        address = f"ipc://{Path(self._directory.name, 's')}"
        self._socket.bind(address)
        return Endpoint(address=address, token=secrets.token_hex(16))

    def _listen_tcp(self, host: str) -> Endpoint:
        server_public, server_secret = zmq.curve_keypair()
        client_public, client_secret = zmq.curve_keypair()
        self._guard = Guard(self._context, self._socket, client_public)
        self._socket.curve_server = True
        self._socket.curve_publickey = server_public
        self._socket.curve_secretkey = server_secret
        self._socket.ipv6 = ":" in host
        place = f"tcp://[{host}]" if ":" in host else f"tcp://{host}"
        port = self._socket.bind_to_random_port(place)
        return Endpoint(
            address=f"{place}:{port}",
            token=secrets.token_hex(16),
            server_key=server_public.decode(),
            client_public=client_public.decode(),
            client_secret=client_secret.decode(),
        )
