"""Who has not the key of a run is not heard, whatever is sent; keys are in no place that others read."""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import psutil
import pytest
import zmq

from shoal import train
from shoal._core.messages import Batch, Endpoint, HostHello, Report, WorkerHello, WorkerOutput
from shoal._host.place import towards
from shoal._runtime import context, preparation
from shoal._runtime.channel import Channel
from shoal._worker.network import connect, dealer
from shoal.engines.local import LocalEngine

encode = msgspec.msgpack.Encoder().encode


@pytest.fixture
def channel() -> Iterator[Channel]:
    one = Channel("127.0.0.1")
    yield one
    one.close()


@pytest.fixture
def peers() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    with zmq.Context(1) as context_:
        context_.linger = 0
        yield context_


def heard(channel: Channel, seconds: float = 0.5) -> list[object]:
    found: list[object] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found += [message for _, message in channel.receive(100)]
        time.sleep(0.01)
    return found


def hello(endpoint: Endpoint, token: str | None = None) -> bytes:
    return encode(HostHello(token=endpoint.token if token is None else token, hostname="h", pid=1))


def test_who_has_the_key_and_the_token_is_heard(channel: Channel, peers: zmq.Context[zmq.Socket[bytes]]):
    peer = dealer(peers, "h/one")
    connect(peer, channel.endpoint)
    peer.send(hello(channel.endpoint))
    assert [type(message) for message in heard(channel)] == [HostHello]
    assert channel.strangers is not None and not channel.strangers.look()
    peer.close()


def test_addresses_may_be_of_either_version(peers: zmq.Context[zmq.Socket[bytes]]):
    for host, written in (("127.0.0.1", "tcp://127.0.0.1:"), ("::1", "tcp://[::1]:")):
        one = Channel(host)
        assert one.endpoint.address.startswith(written)
        peer = dealer(peers, "h/one")
        connect(peer, one.endpoint)
        peer.send(hello(one.endpoint))
        assert len(heard(one)) == 1
        assert towards(one.endpoint.address) == host
        peer.close()
        one.close()


@pytest.mark.parametrize("key", ["none", "of its own", "of another run"])
def test_who_has_another_key_is_refused(channel: Channel, peers: zmq.Context[zmq.Socket[bytes]], key: str):
    peer = dealer(peers, "h/one")
    endpoint = channel.endpoint
    if key == "none":
        peer.connect(endpoint.address)
    elif key == "of its own":  # it has found the server's, say
        public, secret = zmq.curve_keypair()
        connect(peer, msgspec.structs.replace(endpoint, client_public=public.decode(), client_secret=secret.decode()))
    else:
        other = Channel("127.0.0.1")
        connect(peer, msgspec.structs.replace(other.endpoint, address=endpoint.address))
        other.close()
    peer.send(hello(endpoint))
    assert heard(channel) == []
    assert channel.strangers is not None
    assert channel.strangers.look()  # said once
    assert not channel.strangers.look()
    peer.close()


@pytest.mark.parametrize("name", ["h/one", "w/run/1/0", "x", "w/run/1/zero", "w/", ""])
def test_who_has_the_key_but_no_token_is_not_heard(channel: Channel, peers: zmq.Context[zmq.Socket[bytes]], name: str):
    peer = dealer(peers, name) if name else peers.socket(zmq.DEALER)
    connect(peer, channel.endpoint)
    wrong = "0" * 32
    for frame in (
        hello(channel.endpoint, wrong),
        encode(Batch(messages=[WorkerHello(token=wrong, pid=1)])),
        encode(Batch(messages=[Report(n=1, metrics={}, at=0.0)])),
        encode(WorkerOutput(run_id="run", attempt=1, rank=0, data=b"x")),
        b"",
        b"\x80\x04\x95.",  # what would be a pickle
        b"\xff" * 1000,
        hello(channel.endpoint)[:-5],
        os.urandom(100_000),
    ):
        peer.send(frame)
    assert heard(channel) == []
    peer.close()


def raw(address: str, data: bytes) -> None:
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    with socket.create_connection((host, int(port)), timeout=5) as connection:
        try:
            connection.sendall(data)
            connection.settimeout(0.3)
            while connection.recv(4096):
                pass
        except OSError:
            return


ATTACKS: dict[str, Callable[[], bytes]] = {
    "nothing": lambda: b"",
    "garbage": lambda: os.urandom(4096),
    "http": lambda: b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "half a greeting": lambda: b"\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f\x03",
    "null mechanism": lambda: b"\xff" + b"\x00" * 8 + b"\x7f\x03\x00NULL" + b"\x00" * 48,
    "huge frame": lambda: (
        b"\xff" + b"\x00" * 8 + b"\x7f\x03\x00CURVE" + b"\x00" * 47 + b"\x06" + struct.pack("!Q", 2**62)
    ),
}


def test_what_is_recorded_cannot_be_played_again(channel: Channel, peers: zmq.Context[zmq.Socket[bytes]]):
    """A listener in the middle keeps all that a host has said, and says it again on a connection of its own."""
    host, _, port = channel.endpoint.address.removeprefix("tcp://").rpartition(":")
    server = socket.create_server(("127.0.0.1", 0))
    said = bytearray()

    def pass_on() -> None:
        inside, _ = server.accept()
        outside = socket.create_connection((host, int(port)))

        def pump(source: socket.socket, target: socket.socket, keep: bool) -> None:
            while data := source.recv(4096):
                if keep:
                    said.extend(data)
                target.sendall(data)

        threading.Thread(target=pump, args=(outside, inside, False), daemon=True).start()
        pump(inside, outside, True)

    threading.Thread(target=pass_on, daemon=True).start()
    peer = dealer(peers, "h/one")
    middle = f"tcp://127.0.0.1:{server.getsockname()[1]}"
    connect(peer, msgspec.structs.replace(channel.endpoint, address=middle))
    peer.send(hello(channel.endpoint))
    assert len(heard(channel)) == 1
    assert len(said) > 300
    assert channel.endpoint.token.encode() not in said  # nor can it be read
    raw(channel.endpoint.address, bytes(said))
    assert heard(channel) == []
    server.close()
    peer.close()


def test_a_run_goes_on_under_attack_and_says_so_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    context.shutdown()  # the engine of earlier tests, with its host
    engine = LocalEngine()
    engine.listen_on = "127.0.0.1"
    context._engine = engine
    seen: dict[str, str] = {}
    endpoints: list[Endpoint] = []

    class Watched(Channel):
        def __init__(self, host: str | None = None):
            super().__init__(host)
            endpoints.append(self.endpoint)

    def attack() -> None:
        while not endpoints:
            time.sleep(0.01)
        time.sleep(0.5)
        for make in ATTACKS.values():
            raw(endpoints[0].address, make())
        for process in psutil.Process().children(recursive=True):
            seen[str(process.pid)] = " ".join(process.cmdline()) + " ".join(process.environ().values())

    def train_func() -> None:
        for step in range(40):
            time.sleep(0.1)
            train.report({"step": step})

    monkeypatch.setattr(preparation, "Channel", Watched)
    attacker = threading.Thread(target=attack)
    attacker.start()
    try:
        result = train.DataParallelTrainer(
            train_func,
            scaling_config=train.ScalingConfig(num_workers=2),
            run_config=train.RunConfig(name="attacked", storage_path=str(tmp_path)),
        ).fit()
    finally:
        attacker.join()
        context.shutdown()
    assert result.metrics["step"] == 39
    assert [attempt.reason for attempt in result.attempts] == ["finished"]
    told = capsys.readouterr()
    assert (told.out + told.err).count("without this run's key tried to connect") == 1
    kept = b"".join(file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())
    for secret in (endpoints[0].token, endpoints[0].client_secret, endpoints[0].server_key):
        assert secret.encode() not in kept
        assert not [pid for pid, text in seen.items() if secret in text]
    assert seen
