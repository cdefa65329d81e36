"""The supervisor's end of every conversation with a host or a worker.

On one machine it is a unix socket in a private directory; between machines it is TCP with CURVE keys made for the run.
A peer is heard only after a hello with the run's token.
"""

from __future__ import annotations

import secrets
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

import msgspec
import zmq

from shoal._core.messages import Batch, FromHost, FromWorker, HostHello, ToHost, ToWorker, WorkerHello
from shoal._runtime.guard import Guard
from shoal._runtime.local_listener import LocalListener
from shoal._runtime.network_listener import NetworkListener


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
        self._listener: NetworkListener | LocalListener = NetworkListener(host) if host else LocalListener()
        self.endpoint = self._listener.endpoint
        self._known: set[Peer] = set()
        self._waiting: defaultdict[Peer, list[bytes]] = defaultdict(list)
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode_batch = msgspec.msgpack.Decoder(Batch).decode
        self._decode_host: msgspec.msgpack.Decoder[FromHost] = msgspec.msgpack.Decoder(FromHost)

    @property
    def strangers(self) -> Guard | None:
        """Who says when somebody was refused; ``None`` on a private unix socket."""
        return self._listener.guard

    @property
    def source(self) -> int | zmq.Socket[bytes]:
        """What a poller of zmq is to watch."""
        return self._listener.source

    def receive(self, limit: int) -> Iterator[tuple[Peer, FromHost | FromWorker]]:
        """Yield what has arrived, over a network at most ``limit`` frames, without waiting."""
        for name, frame in self._listener.receive(limit):
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
            self._listener.send(identity(peer), frame)
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
        self._listener.close()

    def _is_known(self, peer: Peer, message: FromHost | FromWorker) -> bool:
        if isinstance(message, (HostHello, WorkerHello)):
            if not secrets.compare_digest(message.token, self.endpoint.token):
                return False
            self._known.add(peer)
            for frame in self._waiting.pop(peer, []):
                self._listener.send(identity(peer), frame)
        return peer in self._known
