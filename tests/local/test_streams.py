"""Conversations on one machine: frames over unix sockets, whatever their size and however slow the other end is."""

from __future__ import annotations

import os
import socket
import struct
import threading
from collections.abc import Iterator

import msgspec
import pytest
from workers import wait_for

from shoal._core.messages import Batch, ExitInfo, Farewell, Gathered, HostHello, Ready, WorkerExited, WorkerHello
from shoal._runtime.channel import Channel, HostPeer, WorkerPeer
from shoal._worker.connection import Connection, connection
from shoal._worker.stream import FRAME_LIMIT, Stream

encode = msgspec.msgpack.Encoder().encode


@pytest.fixture
def pair() -> Iterator[tuple[Stream, Stream]]:
    one, other = (Stream(sock) for sock in socket.socketpair())
    yield one, other
    one.close()
    other.close()


@pytest.fixture
def channel() -> Iterator[Channel]:
    one = Channel()
    yield one
    one.close()


def worker(channel: Channel, rank: int, *more: object) -> Connection:
    """Return a worker that has said hello."""
    one = connection(channel.endpoint, f"w/run/1/{rank}", 20)
    one.send(encode(Batch(messages=[WorkerHello(token=channel.endpoint.token, pid=1), *more])))
    return one


def host(channel: Channel, name: str = "one") -> Connection:
    one = connection(channel.endpoint, f"h/{name}", 20)
    one.send(encode(HostHello(token=channel.endpoint.token, hostname="h", pid=1)))
    return one


def test_frames_arrive_whole_and_in_order(pair: tuple[Stream, Stream]):
    one, other = pair
    frames = [os.urandom(size) for size in (0, 1, 3, 4, 5, 1000, 2**16 - 4, 2**16, 100_000, 3_000_000, 2)]
    got: list[bytes] = []
    for frame in frames:
        one.send(frame)
    assert not one.flush()  # three megabytes are more than the kernel keeps
    while len(got) < len(frames):
        one.flush()
        got += other.receive()
    assert got == frames
    assert one.flush()


def test_both_ends_may_send_what_is_large_at_once(pair: tuple[Stream, Stream]):
    large = os.urandom(5_000_000)

    def exchange(stream: Stream, into: list[bytes]) -> None:
        stream.send(large)
        while not (stream.flush() and into):
            stream.wait(5)
            into += stream.receive()

    got: tuple[list[bytes], list[bytes]] = ([], [])
    threads = [threading.Thread(target=exchange, args=one) for one in zip(pair, got, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert got == ([large], [large])


def test_a_frame_in_pieces_is_one_frame():
    raw, end = socket.socketpair()
    stream = Stream(end)
    data = struct.pack("!I", 5) + b"hello" + struct.pack("!I", 2) + b"on"
    got = []
    for place in range(len(data)):
        raw.send(data[place : place + 1])
        got += stream.receive()
    assert got == [b"hello", b"on"]
    raw.close()
    stream.close()


def test_what_announces_too_much_is_no_peer_and_takes_no_memory():
    raw, end = socket.socketpair()
    stream = Stream(end)
    raw.send(struct.pack("!I", 2) + b"on" + struct.pack("!I", FRAME_LIMIT + 1) + b"x" * 100)
    assert stream.receive() == [b"on"]
    assert stream.closed
    raw.close()
    stream.close()


def test_the_last_words_of_a_peer_are_heard_before_its_end(pair: tuple[Stream, Stream]):
    one, other = pair
    one.send(b"last")
    one.close()
    assert other.receive() == [b"last"]
    assert not other.closed
    assert other.receive() == []
    assert other.closed
    assert other.send(b"into nothing")  # dropped: nothing of it waits


def test_a_supervisor_that_is_gone_is_no_error(channel: Channel):
    endpoint = msgspec.structs.replace(channel.endpoint, address=channel.endpoint.address + "-not")
    late = connection(endpoint, "w/run/1/0", 20)
    assert late.closed
    assert late.send(b"x")
    assert late.flush()
    assert late.receive() == []
    late.close(0.0)


def test_the_end_of_a_worker_is_heard_after_what_it_said(channel: Channel):
    its_host = host(channel)
    assert len(list(channel.receive(10))) == 1
    one = worker(channel, 0, *[Ready()] * 5)
    gone = WorkerExited(run_id="run", attempt=1, rank=0, exit=ExitInfo(pid=1, code=0))
    its_host.send(encode(gone))
    one.close(0.0)
    heard = [type(message) for _, message in channel.receive(10)]
    assert heard == [WorkerHello, *[Ready] * 5, WorkerExited]
    its_host.close(0.0)


def test_who_does_not_read_delays_nobody_and_gets_all_in_the_end(channel: Channel):
    sleepy, brisk = worker(channel, 0), worker(channel, 1)
    wait_for(lambda: len(list(channel.receive(10))) == 2 or None)
    for _ in range(5):
        channel.send(WorkerPeer("run", 1, 0), Gathered(key="all", data=[b"x" * 1_000_000]))
    channel.send(WorkerPeer("run", 1, 0), Farewell())
    channel.send(WorkerPeer("run", 1, 1), Farewell())
    assert len(wait_for(brisk.receive)) == 1
    got: list[bytes] = []

    def all_is_there() -> bool:
        list(channel.receive(10))  # it sends what has waited for room
        got.extend(sleepy.receive())
        return len(got) == 6

    wait_for(all_is_there)
    assert all(len(frame) > 1_000_000 for frame in got[:5])
    sleepy.close(0.0)
    brisk.close(0.0)


def test_a_host_that_comes_again_is_the_one_that_is_told(channel: Channel):
    first, second = host(channel), host(channel)
    wait_for(lambda: list(channel.receive(10)))
    channel.send(HostPeer("one"), Farewell())  # type: ignore[arg-type]
    first.close(0.0)
    list(channel.receive(10))
    channel.send(HostPeer("one"), Farewell())  # type: ignore[arg-type]
    got: list[bytes] = []
    wait_for(lambda: got.extend(second.receive()) or len(got) == 2)
    second.close(0.0)


def test_many_peers_come_and_go_and_leave_no_descriptor(channel: Channel):
    before = len(os.listdir("/proc/self/fd"))
    for rank in range(200):
        one = worker(channel, rank)
        one.close(0.0)
        list(channel.receive(10))
    list(channel.receive(10))
    assert len(os.listdir("/proc/self/fd")) == before


def test_garbage_on_the_socket_of_a_machine_harms_nothing(channel: Channel):
    path = channel.endpoint.address.removeprefix("unix://")
    for data in (b"", b"\xff" * 100, os.urandom(10_000), struct.pack("!I", 3) + b"x/1" + struct.pack("!I", 1) + b"\0"):
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.connect(path)
            stranger.send(data)
            assert list(channel.receive(10)) == []
    friend = worker(channel, 0)
    assert len(wait_for(lambda: list(channel.receive(10)))) == 1
    friend.close(0.0)
