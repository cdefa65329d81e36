"""The supervisor: one loop that waits for what arrives and hands it to whom it concerns, a run or many of them."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import math
import os
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import msgspec
import zmq

from shoal._core import events as on
from shoal._core.messages import (
    Endpoint,
    FromHost,
    FromWorker,
    HostHello,
    HostLeaves,
    NativeStacks,
    Pulse,
    ToHost,
    ToWorker,
    WorkerExited,
    WorkerOutput,
)
from shoal._runtime.channel import Channel, Peer, WorkerPeer
from shoal._runtime.seats import Seats

FRAMES_A_TURN = 200
TIDY_EVERY = 50


class Driver(Protocol):
    """What takes part in the loop: it is handed events and timers, in the loop's thread."""

    timers: dict[str, float]

    def handle(self, event: on.Event) -> None:
        """Take an event."""

    def fire(self, name: str) -> None:
        """A timer has come."""

    def follow_up(self) -> None:
        """Go on with what has waited for storage."""

    def settle(self) -> None:
        """Write what has come together in this turn of the loop."""

    def tick(self) -> float:
        """Draw if it is time; return after how many seconds to call again."""


class Workers(Driver, Protocol):
    """A driver that has workers."""

    def hear_host(self, message: WorkerOutput | WorkerExited | NativeStacks) -> None:
        """Take what a host says of one of them."""


class Supervisor:
    """The loop, which belongs to the thread that calls :meth:`run`.

    Parameters
    ----------
    name : str
        Under which hosts serve it.
    channel : Channel
        Where hosts and workers are heard.

    Attributes
    ----------
    keeps_hosts : bool
        Whether hosts go on serving it while no run has room: somebody else holds them for it.
    seats : Seats
        Which processes run trial after trial.
    """

    def __init__(self, name: str, channel: Channel):
        self.name = name
        self.keeps_hosts = False
        self.seats = Seats()
        self._channel = channel
        self._drivers: dict[str, Driver] = {}
        self._workers: dict[str, Workers] = {}
        self._inbox: deque[tuple[Driver, on.Event]] = deque()
        self._soon: deque[Callable[[], None]] = deque()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._schedule: list[tuple[float, int, dict[str, float], str, Callable[[str], None]]] = []
        self._numbers = itertools.count()
        self._removed = 0
        self._watched: dict[int | zmq.Socket[bytes], Callable[[], None]] = {}
        self._poller = zmq.Poller()
        self._host_limits: dict[str, tuple[float, float]] = {}
        self._host_timers: dict[str, float] = {}

    @property
    def endpoint(self) -> Endpoint:
        """Where hosts and workers connect to."""
        return self._channel.endpoint

    def add(self, name: str, driver: Driver) -> None:
        """Let a driver take part."""
        self._drivers[name] = driver

    def add_run(self, run_id: str, driver: Workers) -> None:
        """Let the driver of a run take part."""
        self._drivers[run_id] = self._workers[run_id] = driver

    def remove(self, name: str) -> None:
        """A driver is done."""
        self._drivers.pop(name, None)
        self._workers.pop(name, None)
        self._removed += 1
        if self._removed % TIDY_EVERY == 0:  # timers that will never fire would keep their drivers alive until then
            self._schedule = [entry for entry in self._schedule if entry[2].get(entry[3]) == entry[0]]
            heapq.heapify(self._schedule)

    def send(self, peer: Peer, message: ToHost | ToWorker) -> None:
        """Send a message, or keep it until the peer has said hello."""
        self._channel.send(peer, message)

    def post(self, driver: Driver, event: on.Event) -> None:
        """Take an event for a driver from any thread or signal handler."""
        self._inbox.append((driver, event))
        self.wake()

    def enqueue(self, work: Callable[[], None]) -> None:
        """Have work done in this loop, after what is being done now. To be called in the loop's thread."""
        self._soon.append(work)

    def wake(self) -> None:
        """End the loop's wait."""
        with contextlib.suppress(OSError):  # a full pipe wakes as well; a closed one belongs to a run that is over
            os.write(self._wake_write, b"x")

    def watch(self, source: int | zmq.Socket[bytes], then: Callable[[], None]) -> None:
        """Call ``then`` in this loop when there is something to read."""
        self._watched[source] = then
        self._poller.register(source, zmq.POLLIN)

    def unwatch(self, source: int | zmq.Socket[bytes]) -> None:
        """Watch it no longer."""
        if self._watched.pop(source, None) is not None:
            self._poller.unregister(source)

    def set_timer(self, driver: Driver, name: str, at: float) -> None:
        """Have a timer of a driver fire; one of the same name is replaced."""
        self._set(driver.timers, name, at, driver.fire)

    def room_is_given_back(self) -> None:
        """A run gives its room back, and its hosts may serve this supervisor no longer."""
        if not self.keeps_hosts:
            self._channel.forget_hosts()

    def run(self, over: Callable[[], bool]) -> None:
        """Work until it is over."""
        self._poller.register(self._channel.source, zmq.POLLIN)
        self.watch(self._wake_read, self._woken)
        if self._channel.strangers is not None:
            self.watch(self._channel.strangers.monitor, self._tell_of_strangers)
        while not over():
            self._turn()

    def close(self) -> None:
        """Release the descriptors."""
        for descriptor in (self._wake_read, self._wake_write):
            os.close(descriptor)

    # ---- one turn of the loop ---------------------------------------------------------------------------------------

    def _turn(self) -> None:
        more = False
        for source, _ in self._poller.poll(math.ceil(self._patience() * 1000)):
            if source == self._channel.source:
                more = True
            else:
                self._watched[source]()
        for driver in list(self._drivers.values()):
            driver.follow_up()
        # Before the messages: a worker that was there before its run may say hello as soon as there is room for it.
        while self._inbox:
            driver, event = self._inbox.popleft()
            driver.handle(event)
            self._do_soon()
        if more:
            for peer, message in self._channel.receive(FRAMES_A_TURN):
                self._hear(peer, message)
                self._do_soon()
        self._fire_timers()
        self._do_soon()
        for driver in list(self._drivers.values()):
            driver.settle()

    def _do_soon(self) -> None:
        while self._soon:
            self._soon.popleft()()

    def _patience(self) -> float:
        if self._inbox or self._soon:
            return 0.0
        waits = [60.0, *(driver.tick() for driver in self._drivers.values())]
        if self._schedule:
            waits.append(self._schedule[0][0] - time.monotonic())
        return max(0.0, min(waits))

    def _set(self, timers: dict[str, float], name: str, at: float, fire: Callable[[str], None]) -> None:
        timers[name] = at
        heapq.heappush(self._schedule, (at, next(self._numbers), timers, name, fire))

    def _fire_timers(self) -> None:
        now = time.monotonic()
        while self._schedule and self._schedule[0][0] <= now:
            at, _, timers, name, fire = heapq.heappop(self._schedule)
            if timers.get(name) == at:  # else it was replaced by a later one, or its driver is done
                del timers[name]
                fire(name)

    # ---- what arrives -----------------------------------------------------------------------------------------------

    def _hear(self, peer: Peer, message: FromHost | FromWorker) -> None:
        if isinstance(peer, WorkerPeer):
            now = self.seats.now(peer)
            driver: Any = now and self._workers.get(now.run_id)
            if now is not None and driver is not None:
                driver.handle(on.Heard(attempt=now.attempt, rank=now.rank, message=message))  # type: ignore[arg-type]
            return
        match message:
            case WorkerOutput() | WorkerExited() | NativeStacks():
                self._hear_of_worker(message)
            case HostHello() if message.limit:
                self._expect_pulse(peer.host, message.limit)
            case HostLeaves():
                self._host_limits.pop(peer.host, None)
                self._host_timers.pop(peer.host, None)
            case Pulse() if peer.host in self._host_limits:
                self._expect_pulse(peer.host, self._host_limits[peer.host][0])
                self._channel.send(peer, Pulse())

    def _woken(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_read, 4096)

    def _tell_of_strangers(self) -> None:
        """Somebody was refused: that is said once, for a scan of the network makes many of them."""
        guard = self._channel.strangers
        if guard is not None and guard.look():
            text = f"somebody without this run's key tried to connect with {self.endpoint.address} and was refused"
            for driver in list(self._workers.values()):
                driver.handle(on.EngineSays(text=text, level="warning"))

    def _hear_of_worker(self, message: WorkerOutput | WorkerExited | NativeStacks) -> None:
        process = WorkerPeer(message.run_id, message.attempt, message.rank)
        now = self.seats.now(process)
        if isinstance(message, WorkerExited):
            self.seats.gone(process)
        if now is not None and now.run_id in self._workers:
            about = msgspec.structs.replace(message, run_id=now.run_id, attempt=now.attempt, rank=now.rank)
            self._workers[now.run_id].hear_host(about)

    def _expect_pulse(self, host: str, limit: float) -> None:
        self._host_limits[host] = (limit, time.monotonic())
        self._set(self._host_timers, host, time.monotonic() + limit, self._check_silence)

    def _check_silence(self, host: str) -> None:
        limit, heard_at = self._host_limits[host]
        silent = time.monotonic() - heard_at
        reason = f"host {host} was silent for {silent:.1f} s (limit {limit:g} s)"
        for driver in list(self._workers.values()):
            driver.handle(on.HostLost(host=host, reason=reason))
