"""The host program by itself: fresh interpreters, preloading, strangers at the door, and the fence."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil
import pytest
import zmq
from workers import fit, wait_for

from shoal import train
from shoal._core.messages import Batch, HostHello, Pulse, Ready, StartWorker, WorkerHello
from shoal._host import scratch
from shoal._runtime.channel import Channel, HostPeer, WorkerPeer, identity, peer_of
from shoal._worker.connection import connection
from shoal.abc import Framework
from shoal.train import DataParallelTrainer, Result, RunConfig, ScalingConfig


class FreshInterpreter(Framework):
    """A framework that must not be forked after import, as tensorflow."""

    preload = ("json.tool",)
    forkable = False


class Preloads(Framework):
    """A framework that names a module that nothing else imports."""

    preload = ("wave", "this_module_does_not_exist")


class Broken(Framework):
    """A framework whose set-up fails on one rank."""

    def start(self, worker):
        if worker.ranks.world_rank == 1:
            raise RuntimeError("no accelerator")
        worker.gather("never", b"", timeout_s=60)


def fit_with(framework: Framework, function, workers: int = 2) -> Result:
    return DataParallelTrainer(
        function,
        framework=framework,
        scaling_config=ScalingConfig(num_workers=workers),
        run_config=RunConfig(verbose=0, log_to_driver=None),
    ).fit()


def test_a_framework_that_cannot_be_forked_gets_fresh_interpreters():
    def train_func():
        with open("/proc/self/cmdline") as file:
            command = file.read().split("\0")
        train.report({"command": command, "preloaded": "json.tool" in sys.modules, "rank": os.environ["RANK"]})

    metrics = fit_with(FreshInterpreter(), train_func).metrics
    assert metrics["command"][1:3] == ["-m", "shoal._worker"]
    assert metrics["preloaded"] is False
    assert metrics["rank"] == "0"


def test_a_crash_of_a_fresh_interpreter_is_named_too():
    with pytest.raises(train.TrainingFailedError, match="was ended by SIGKILL"):
        fit_with(FreshInterpreter(), lambda: os.kill(os.getpid(), 9), 1)


def test_the_next_fit_may_preload_something_else_on_the_same_host():
    def train_func():
        train.report({"wave": "wave" in sys.modules, "host": os.getppid()})

    before = fit(train_func, 1).metrics
    after = fit_with(Preloads(), train_func, 1).metrics
    assert (before["wave"], after["wave"]) == (False, True)
    assert before["host"] == after["host"]


def test_a_framework_that_fails_in_one_rank_fails_the_run_with_its_reason():
    with pytest.raises(train.TrainingFailedError, match=r"^rank 1 on .* raised RuntimeError: no accelerator"):
        fit_with(Broken(), lambda: None)


def test_names_of_peers_are_read_back():
    for peer in (HostPeer("local-1"), WorkerPeer("run/with/slashes", 3, 17)):
        assert peer_of(identity(peer)) == peer
    for name in (b"", b"x/1", b"w/a/b/c", b"\xff"):
        with pytest.raises(ValueError):  # noqa: PT011
            peer_of(name)


@pytest.mark.parametrize("host", [None, "127.0.0.1"])
def test_a_stranger_without_the_token_is_not_heard(host: str | None):
    channel = Channel(host)
    endpoint = channel.endpoint

    def hello(token: str) -> bytes:
        return msgspec.msgpack.encode(Batch(messages=[WorkerHello(token=token, pid=1), Ready()]))

    stranger, friend = connection(endpoint, "w/run/1/0", 20), connection(endpoint, "w/run/1/1", 20)
    stranger.send(hello("wrong"))
    stranger.send(b"\x00 not even a message")
    friend.send(hello(endpoint.token))
    heard: list[tuple[object, object]] = []
    wait_for(lambda: heard.extend(channel.receive(10)) or len(heard) >= 2)
    assert {peer.rank for peer, _ in heard} == {1}
    stranger.close(0)
    friend.close(0)
    channel.close()


def test_the_socket_of_a_local_run_is_private():
    channel = Channel()
    directory = Path(channel.endpoint.address.removeprefix("unix://")).parent
    assert directory.stat().st_mode & 0o777 == 0o700
    channel.close()
    assert not directory.exists()


def test_without_the_keys_nobody_connects_over_the_network():
    channel = Channel("127.0.0.1")
    context = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.IDENTITY, b"w/run/1/0")
    socket.connect(channel.endpoint.address)
    hello = WorkerHello(token=channel.endpoint.token, pid=1)
    socket.send(msgspec.msgpack.encode(Batch(messages=[hello])))
    time.sleep(0.3)
    assert list(channel.receive(10)) == []
    socket.close(0)
    context.term()
    channel.close()


# ---- a host that is ordered by hand, as on another machine ----


@pytest.fixture
def far_host(tmp_path: Path) -> Iterator[tuple[Channel, subprocess.Popen[bytes]]]:
    """A host that is connected over TCP and takes its supervisor for lost after a second of silence."""
    channel = Channel("127.0.0.1")
    directory = tmp_path / f"{scratch.PREFIX}far"
    directory.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-m", "shoal._host", str(directory), str(os.getpid())], stdin=subprocess.PIPE
    )
    assert process.stdin is not None
    endpoint = msgspec.to_builtins(channel.endpoint)
    serve = {"type": "Serve", "run_id": "run", "host": "far", "endpoint": endpoint, "limit": 1.0}
    process.stdin.write(json.dumps(serve).encode() + b"\n")
    process.stdin.flush()
    yield channel, process
    process.stdin.close()
    process.wait(20)
    channel.close()


def start_worker(channel: Channel) -> int:
    """Have the host start a worker, and return its pid once it says hello."""
    order = StartWorker(
        attempt=1,
        rank=0,
        run_id="run",
        environment=dict(os.environ),
        directory=os.getcwd(),
        import_path=sys.path,
        arguments=["far"],
        preload=[],
        fork=True,
    )
    channel.send(HostPeer("far"), order)
    heard: list[tuple[object, object]] = []

    def hello() -> int:
        for peer, message in channel.receive(10):
            heard.append((peer, message))
            if isinstance(message, Pulse):
                channel.send(HostPeer("far"), Pulse())
        return next((m.pid for _, m in heard if isinstance(m, WorkerHello)), 0)

    pid: int = wait_for(hello)
    greeting = next(m for _, m in heard if isinstance(m, HostHello))
    assert greeting.limit == 1.0
    return pid


def test_a_host_fences_the_workers_of_a_silent_supervisor(far_host: tuple[Channel, subprocess.Popen[bytes]]):
    channel, process = far_host
    pid = start_worker(channel)
    deadline = time.monotonic() + 2.5
    while time.monotonic() < deadline:  # as long as the supervisor answers, the worker lives
        for _, message in channel.receive(10):
            if isinstance(message, Pulse):
                channel.send(HostPeer("far"), Pulse())
        time.sleep(0.01)
    assert psutil.pid_exists(pid)
    wait_for(lambda: not psutil.pid_exists(pid), seconds=10)  # nobody answers any more
    assert process.poll() is None


def test_workers_end_with_their_host(far_host: tuple[Channel, subprocess.Popen[bytes]]):
    channel, process = far_host
    pid = start_worker(channel)
    process.kill()
    wait_for(lambda: not psutil.pid_exists(pid), seconds=5)


def test_what_a_killed_host_left_is_removed_by_another_one(
    far_host: tuple[Channel, subprocess.Popen[bytes]], tmp_path: Path
):
    channel, process = far_host
    start_worker(channel)
    (directory,) = tmp_path.iterdir()
    (directory / "large").write_bytes(b"x")
    scratch.remove_left(tmp_path, age=0)
    assert (directory / "large").exists()  # its host lives
    process.kill()
    process.wait(10)
    scratch.remove_left(tmp_path, age=3600)
    assert directory.exists()  # it may belong to a host that has just been started
    scratch.remove_left(tmp_path, age=0)
    assert not directory.exists()


def test_workers_end_with_their_fork_server(far_host: tuple[Channel, subprocess.Popen[bytes]]):
    channel, process = far_host
    pid = start_worker(channel)
    parent = psutil.Process(pid).parent()
    assert parent is not None
    parent.kill()
    wait_for(lambda: not psutil.pid_exists(pid), seconds=5)
    process.wait(10)
