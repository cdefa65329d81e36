"""The real channel and supervisor with thousands of workers, which a few processes play: they train nothing.

Each worker reports once a second, each host of eight sends heartbeats. Measured are the driver's CPU time, its memory,
how long the start of an attempt takes, and how long a stop order takes to reach the first and the last worker.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import psutil
import zmq

from benchmarks.harness import Measurement
from shoal import train
from shoal._core import events as on
from shoal._core.contracts import Engine, Inbox
from shoal._core.messages import (
    Batch,
    Endpoint,
    ExitInfo,
    Farewell,
    Finished,
    HostHello,
    KillWorkers,
    Pulse,
    Ready,
    Report,
    Setup,
    StartWorker,
    StopAt,
    ToHost,
    ToWorker,
    WorkerExited,
    WorkerHello,
)
from shoal._core.scaling import GroupRequest
from shoal._runtime.preparation import prepared
from shoal._worker.network import connect, dealer

ON_EACH = 8
PLAYERS = 4
LIMIT = 120.0  # of silence: thousands of sockets share two cores with the driver here
SECONDS = 10.0  # of training that are measured


class SimulatedEngine(Engine):
    """Has as many machines as are asked for; who plays them gets the endpoint through a pipe."""

    name = "simulated"
    listen_on = "127.0.0.1"

    def __init__(self, players: list[Any]):
        self._players = players

    def total(self) -> Mapping[str, float]:
        return {"CPU": 1e9}

    def check(self, request: GroupRequest) -> None:
        return

    def acquire(self, request: GroupRequest, inbox: Inbox) -> Any:
        slots, left = [], request.max_workers
        while left:
            count = min(ON_EACH, left)
            slots.append(on.HostSlots(host=f"host{len(slots)}", hostname=f"host{len(slots)}", count=count))
            left -= count
        for number, player in enumerate(self._players):
            names = [slot.host for slot in slots[number :: len(self._players)]]
            player.send((msgspec.msgpack.encode(inbox.endpoint), inbox.run_id, names))
        inbox.post(on.Acquired(slots=tuple(slots)))
        return _Lease()

    def shutdown(self) -> None:
        return


class _Lease:
    def release(self) -> None:
        return


def play(pipe: Any) -> None:
    """Be many hosts and their workers, until told to stop; then say when workers were told to."""
    endpoint_data, run_id, names = pipe.recv()
    endpoint = msgspec.msgpack.decode(endpoint_data, type=Endpoint)
    _Player(endpoint, run_id, names, pipe).run()


class _Player:
    def __init__(self, endpoint: Endpoint, run_id: str, names: list[str], pipe: Any):
        self._endpoint, self._run_id, self._pipe = endpoint, run_id, pipe
        self._context = zmq.Context(1)
        self._context.set(zmq.MAX_SOCKETS, 60_000)
        self._poller = zmq.Poller()
        self._encode = msgspec.msgpack.Encoder().encode
        self._for_host: msgspec.msgpack.Decoder[ToHost] = msgspec.msgpack.Decoder(ToHost)
        self._for_worker: msgspec.msgpack.Decoder[ToWorker] = msgspec.msgpack.Decoder(ToWorker)
        self._hosts: dict[Any, str] = {}
        self._workers: dict[Any, tuple[int, int, Any]] = {}
        self._reports: dict[Any, int] = {}
        self._due: list[tuple[float, Any]] = []
        self._told: list[float] = []
        self._over: list[Any] = []
        for name in names:
            socket = self._socket(f"h/{name}")
            socket.send(self._encode(HostHello(token=endpoint.token, hostname=name, pid=1, limit=LIMIT)))
            self._hosts[socket] = name

    def _socket(self, identity: str) -> Any:
        socket = dealer(self._context, identity)
        socket.setsockopt(zmq.LINGER, 1000)
        connect(socket, self._endpoint)
        self._poller.register(socket, zmq.POLLIN)
        return socket

    def run(self) -> None:
        pulse_at = time.monotonic()
        while self._hosts and not self._pipe.poll():  # until the driver is done
            now = time.monotonic()
            if now >= pulse_at:
                for socket in self._hosts:
                    socket.send(self._encode(Pulse()))
                pulse_at = now + LIMIT / 4
            while self._due and self._due[0][0] <= now:
                self._report(self._due.pop(0)[1], now)
            wait = min([pulse_at, now + 0.2, *(at for at, _ in self._due[:1])]) - time.monotonic()
            for socket, _ in self._poller.poll(max(0, round(wait * 1000))):
                self._hear(socket)
        self._pipe.recv()
        self._pipe.send(self._told)
        os._exit(0)

    def _report(self, socket: Any, now: float) -> None:
        if socket in self._workers and self._reports[socket] >= 0:
            self._reports[socket] += 1
            report = Report(n=self._reports[socket], metrics={"loss": 0.5, "step": 1}, at=time.time())
            socket.send(self._encode(Batch(messages=[report])))
            self._due.append((now + 1.0, socket))

    def _hear(self, socket: Any) -> None:
        while True:
            try:
                frame = socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            if socket in self._hosts:
                order = self._for_host.decode(frame)
                if isinstance(order, StartWorker):
                    worker = self._socket(f"w/{order.run_id}/{order.attempt}/{order.rank}")
                    self._workers[worker] = (order.attempt, order.rank, socket)
                    self._say(worker, WorkerHello(token=self._endpoint.token, pid=order.rank + 1))
                elif isinstance(order, KillWorkers):
                    for worker in [w for w, (_, rank, _) in self._workers.items() if rank in order.ranks]:
                        self._end(worker)
                continue
            self._take(socket, self._for_worker.decode(frame))

    def _take(self, socket: Any, message: Any) -> None:
        rank = self._workers[socket][1]
        if isinstance(message, Setup):
            self._say(socket, Ready())
            self._reports[socket] = 0
            self._due.append((time.monotonic() + (rank % 100) / 100, socket))
            self._due.sort(key=lambda pair: pair[0])
        elif isinstance(message, StopAt):
            self._told.append(time.monotonic())
            self._reports[socket] = -1
            self._say(socket, Finished(stopped=True, reports=message.n))
        elif isinstance(message, Farewell):
            self._end(socket)

    def _end(self, socket: Any) -> None:
        attempt, rank, host = self._workers.pop(socket)
        gone = WorkerExited(run_id=self._run_id, attempt=attempt, rank=rank, exit=ExitInfo(pid=rank + 1, code=0))
        host.send(self._encode(gone))
        self._poller.unregister(socket)
        self._over.append(socket)  # closed with the process: it is being read from

    def _say(self, socket: Any, message: Any) -> None:
        socket.send(self._encode(Batch(messages=[message])))


@dataclass
class Figures:
    """What one size came to: seconds to start, cores while training, MiB, seconds to the first and last stop."""

    start: float = 0.0
    cores: float = 0.0
    memory: float = 0.0
    first_stop: float = 0.0
    last_stop: float = 0.0


def with_workers(count: int, payload: int = 0) -> Figures:
    """Run one group of this size, with a function that takes ``payload`` bytes to its workers."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    methods = multiprocessing.get_context("fork")
    pipes, processes = [], []
    for _ in range(PLAYERS):
        ours, theirs = methods.Pipe()
        processes.append(methods.Process(target=play, args=(theirs,), daemon=True))
        pipes.append(ours)
    for process in processes:
        process.start()
    ballast = os.urandom(payload)
    trainer = train.DataParallelTrainer(
        lambda: len(ballast),
        scaling_config=train.ScalingConfig(num_workers=count),
        run_config=train.RunConfig(verbose=0, storage_path=tempfile.mkdtemp()),
    )
    figures = Figures()
    with prepared(trainer._job(), SimulatedEngine(pipes)) as run:
        asked = threading.Thread(target=_measure, args=(run, figures), daemon=True)
        asked.start()
        run.run()
    for pipe in pipes:
        pipe.send("over")
    told = sorted(at for pipe in pipes for at in pipe.recv())
    figures.first_stop, figures.last_stop = told[0] - figures.first_stop, told[-1] - figures.first_stop
    for process in processes:
        process.join(10)
    return figures


def _measure(run: Any, figures: Figures) -> None:
    began = time.monotonic()
    while run.machine.state.value != "RUNNING":
        time.sleep(0.01)
    figures.start = time.monotonic() - began
    time.sleep(2.0)
    cpu, at = time.process_time(), time.monotonic()
    time.sleep(SECONDS)
    figures.cores = (time.process_time() - cpu) / (time.monotonic() - at)
    figures.memory = psutil.Process().memory_info().rss / 2**20
    print(figures, flush=True)
    figures.first_stop = time.monotonic()
    run.post(on.StopAsked(reason="measured"))


def measure(quick: bool) -> Iterator[Measurement]:
    # Each size in a process of its own: memory that one size has taken is not given back.
    context = multiprocessing.get_context("spawn")
    for count in (100, 1000) if quick else (100, 1000, 10_000):
        with context.Pool(1) as pool:  # its process is no daemon's child, and may have children
            figures = pool.apply(_alone, (count,))
        yield Measurement(f"{count} workers, a report a second: cores", "", [figures.cores], budget="< 0.5 at 10,000")
        yield Measurement(f"{count} workers: microseconds of CPU a report", "us", [figures.cores / count * 1e6])
        yield Measurement(f"{count} workers: memory of the driver", "MB", [figures.memory])
        yield Measurement(f"{count} workers: start of the attempt", "s", [figures.start])
        yield Measurement(f"{count} workers: a stop reaches the first", "s", [figures.first_stop])
        yield Measurement(f"{count} workers: a stop reaches the last", "s", [figures.last_stop])


def _alone(count: int) -> Figures:
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]
    return with_workers(count)
