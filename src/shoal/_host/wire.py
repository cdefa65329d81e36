"""Frames between the two processes of a host, over a socket pair, with file descriptors along."""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence

import msgspec

from shoal._core.messages import ExitInfo
from shoal._worker.process import Birth

_LENGTH = struct.Struct("!I")


class Key(msgspec.Struct, frozen=True):
    """Names one worker of this host: which run, which attempt, which rank."""

    run_id: str
    attempt: int
    rank: int


class Spawn(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Start a worker whose output goes to the descriptor that comes along."""

    key: Key
    birth: Birth


class Kill(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """End a worker and what it started."""

    key: Key


class Gone(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A worker is reaped."""

    key: Key
    exit: ExitInfo


Order = Spawn | Kill
_encode = msgspec.msgpack.Encoder().encode


def send(sock: socket.socket, message: Order | Gone, descriptors: Sequence[int] = ()) -> None:
    """Send one message whole."""
    payload = _encode(message)
    socket.send_fds(sock, [_LENGTH.pack(len(payload))], list(descriptors))
    sock.sendall(payload)


def receive(sock: socket.socket) -> tuple[bytes, list[int]]:
    """Wait for one message and return its bytes and descriptors; empty bytes when the other side is gone."""
    head, descriptors, _, _ = socket.recv_fds(sock, _LENGTH.size, 4)
    if len(head) < _LENGTH.size:
        head += _exactly(sock, _LENGTH.size - len(head)) if head else b""
    if len(head) < _LENGTH.size:
        return b"", descriptors
    return _exactly(sock, _LENGTH.unpack(head)[0]), descriptors


def _exactly(sock: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = sock.recv(size - len(parts))
        if not part:
            return b""
        parts += part
    return bytes(parts)
