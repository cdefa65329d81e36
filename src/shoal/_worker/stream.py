"""Frames over a unix socket between two processes of one machine: a length in four bytes, then as many bytes."""

from __future__ import annotations

import contextlib
import select
import socket
import struct

FRAME_LIMIT = 2**30  # bytes
READ_SIZE = 2**16  # bytes; more would be mapped and unmapped by the allocator at each reading
READS = 5  # in a row, which is more than the kernel keeps for a reader

_LENGTH = struct.Struct("!I")


class Stream:
    """One end of a connection, for one thread. Nothing waits: what the kernel does not take at once is kept.

    Attributes
    ----------
    descriptor : int
        For a poller. It is readable for ever once the other end is gone.
    closed : bool
        Whether the other end is gone, or has sent what is no frame. What is sent then is dropped.
    """

    def __init__(self, sock: socket.socket):
        sock.setblocking(False)
        self._sock = sock
        self.descriptor = sock.fileno()
        self.closed = False
        self._unsent = bytearray()
        self._received = bytearray()

    @classmethod
    def connect(cls, path: str) -> Stream:
        """Connect with who listens at a path. Where nobody does any longer, the stream is closed from the beginning."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        refused = False
        try:
            sock.connect(path)
        except (FileNotFoundError, ConnectionRefusedError):
            refused = True
        stream = cls(sock)
        stream.closed = refused
        return stream

    def send(self, frame: bytes) -> bool:
        """Take a frame and send of it what fits; return whether all went that was ever taken."""
        if self.closed:
            return True
        if len(frame) > FRAME_LIMIT:
            raise ValueError(f"a message of {len(frame)} bytes; at most {FRAME_LIMIT} can be sent")
        head = _LENGTH.pack(len(frame))
        if self._unsent:
            self._unsent += head
            self._unsent += frame
            return self.flush()
        try:
            sent = self._sock.sendmsg([head, frame])
        except BlockingIOError:
            sent = 0
        except OSError:
            return self._lose()
        if sent < _LENGTH.size:
            self._unsent += head[sent:]
            self._unsent += frame
        else:
            self._unsent += memoryview(frame)[sent - _LENGTH.size :]
        return not self._unsent

    def flush(self) -> bool:
        """Send what is kept, as far as it fits; return whether all went."""
        while self._unsent and not self.closed:
            try:
                sent = self._sock.send(self._unsent)
            except BlockingIOError:
                return False
            except OSError:
                return self._lose()
            del self._unsent[:sent]
        return True

    def receive(self) -> list[bytes]:
        """Return the frames that have come whole."""
        for _ in range(READS):
            try:
                data = self._sock.recv(READ_SIZE)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            if not data:
                self._lose()
                break
            self._received += data
            if len(data) < READ_SIZE:
                break
        return self._whole_frames()

    def wait(self, seconds: float, wake: int = -1) -> None:
        """Wait until there is something to read, or room for what is kept, or the descriptor ``wake`` is readable."""
        poller = select.poll()
        if not self.closed:
            poller.register(self.descriptor, select.POLLIN | (select.POLLOUT if self._unsent else 0))
        if wake >= 0:
            poller.register(wake, select.POLLIN)
        poller.poll(seconds * 1000)

    def close(self, linger: float = 0.0) -> None:
        """Close this end; what is kept may take so many seconds to go."""
        if self._unsent and not self.closed:
            self._sock.settimeout(linger)
            with contextlib.suppress(OSError):
                self._sock.sendall(self._unsent)
        self._sock.close()

    def _lose(self) -> bool:
        self.closed = True
        self._unsent.clear()
        return True  # nothing of what was taken waits any longer

    def _whole_frames(self) -> list[bytes]:
        frames: list[bytes] = []
        begin, end = 0, len(self._received)
        with memoryview(self._received) as view:
            while end - begin >= _LENGTH.size:
                (size,) = _LENGTH.unpack_from(view, begin)
                if size > FRAME_LIMIT:
                    self._lose()
                    break
                after = begin + _LENGTH.size + size
                if after > end:
                    break
                frames.append(bytes(view[begin + _LENGTH.size : after]))
                begin = after
        del self._received[:begin]
        return frames
