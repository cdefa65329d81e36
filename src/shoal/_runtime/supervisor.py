"""The supervisor of a run: one loop that turns what arrives into events, and commands into deeds."""

from __future__ import annotations

import contextlib
import heapq
import math
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import zmq

from shoal._core import commands as do
from shoal._core import events as on
from shoal._core.contracts import Callback, Engine, Lease
from shoal._core.job import Job
from shoal._core.messages import (
    Endpoint,
    ExitInfo,
    FromHost,
    FromWorker,
    HostHello,
    KillWorkers,
    NativeStacks,
    Pulse,
    ReadStacks,
    Setup,
    StartWorker,
    WorkerExited,
    WorkerOutput,
)
from shoal._core.records import DriverStarted
from shoal._core.run import Run
from shoal._core.scaling import fitting
from shoal._runtime.channel import Channel, HostPeer, Peer, WorkerPeer
from shoal._runtime.checkpoint_deeds import CheckpointDeeds
from shoal._runtime.display import Display
from shoal._runtime.environment import worker_environment
from shoal._runtime.pickling import PickledTask
from shoal._runtime.rundir import RunFiles
from shoal._runtime.validation import Validator

FRAMES_A_TURN = 200
PATIENCE = 3.0  # seconds that storage has for the last words of a run that is to end at once
REFRESH = 5.0  # seconds between two copies of metrics and logs to storage that is not a disk


@dataclass(frozen=True)
class Parts:
    """What a supervisor works with; the driver puts it together."""

    job: Job
    task: PickledTask
    run_id: str
    engine: Engine
    channel: Channel
    files: RunFiles
    display: Display
    driver: DriverStarted
    validator: Validator | None = None


@dataclass(frozen=True)
class Ticketed:
    """The supervisor as an engine sees it that was asked for room: its answers bear the number of the request."""

    supervisor: Supervisor
    ticket: int

    @property
    def run_id(self) -> str:
        """The run's identifier."""
        return self.supervisor.run_id

    @property
    def endpoint(self) -> Endpoint:
        """Where hosts and workers of this run connect to."""
        return self.supervisor.endpoint

    def post(self, event: on.Event) -> None:
        """Pass an event on."""
        if isinstance(event, (on.Acquired, on.CapacityChanged)):
            event = msgspec.structs.replace(event, ticket=self.ticket)
        self.supervisor.post(event)


class Supervisor:
    """Drives one run from beginning to end in the thread that calls :meth:`run`."""

    def __init__(self, machine: Run, parts: Parts):
        self._machine = machine
        self._parts = parts
        self._channel = parts.channel
        self._files = parts.files
        self._callbacks: Sequence[Callback] = (parts.display, *parts.job.callbacks)
        self._inbox: deque[on.Event] = deque()
        self._held: deque[do.Command] = deque()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._timers: dict[str, float] = {}
        self._schedule: list[tuple[float, str]] = []
        self._host_limits: dict[str, tuple[float, float]] = {}
        self._lease: Lease | None = None
        self._outcome: do.Finish | None = None
        self._deeds: dict[type[do.Command], Callable[[Any], None]] = {
            do.Acquire: self._acquire,
            do.Release: self._release,
            do.StartWorkers: self._start_workers,
            do.SetUp: self._set_up,
            do.Tell: self._tell,
            do.Kill: self._kill,
            do.Persist: self._persist,
            do.WriteRow: self._write_row,
            **CheckpointDeeds(parts.files, parts.validator, self.post, self._committed).deeds,
            do.SetTimer: self._set_timer,
            do.DumpNativeStacks: self._dump_native_stacks,
            do.KeepStacks: self._keep_stacks,
            do.Say: self._say,
            do.Notify: self._notify,
            do.Finish: self._finish,
        }

    @property
    def machine(self) -> Run:
        """What decides."""
        return self._machine

    @property
    def files(self) -> RunFiles:
        """The run's directory."""
        return self._files

    @property
    def run_id(self) -> str:
        """The run's identifier."""
        return self._parts.run_id

    @property
    def endpoint(self) -> Endpoint:
        """Where hosts and workers of this run connect to."""
        return self._channel.endpoint

    def post(self, event: on.Event) -> None:
        """Take an event from any thread or signal handler."""
        self._inbox.append(event)
        self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # a full pipe wakes as well; a closed one belongs to a run that is over
            os.write(self._wake_write, b"x")

    def run(self) -> do.Finish:
        """Drive the run to its end and return how it ended."""
        poller = zmq.Poller()
        poller.register(self._channel.socket, zmq.POLLIN)
        poller.register(self._wake_read, zmq.POLLIN)
        self._files.background.wake = self._wake
        try:
            self._tell_callbacks("on_run_start", self._parts.job.name, str(self._files.path))
            self._beat()
            self._refresh_mirror()
            self._handle(on.Begin(wall=time.time(), driver=self._parts.driver))
            while self._outcome is None:
                self._turn(poller)
            self._tell_callbacks("on_run_end", self._outcome.state.value, self._outcome.reason)
            return self._outcome
        finally:
            if self._parts.validator is not None:
                self._parts.validator.close()
            self._files.background.wake = lambda: None
            if self._lease is not None:
                self._lease.release()
            self._parts.display.close()
            for descriptor in (self._wake_read, self._wake_write):
                os.close(descriptor)

    # ---- one turn of the loop ---------------------------------------------------------------------------------------

    def _turn(self, poller: zmq.Poller) -> None:
        more = False
        for source, _ in poller.poll(math.ceil(self._patience() * 1000)):
            if source == self._wake_read:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake_read, 4096)
            else:
                more = True
        self._files.background.follow_up()
        self._do_held()
        # Before the messages: a worker that was there before its run may say hello as soon as there is room for it.
        while self._inbox:
            event = self._inbox.popleft()
            if isinstance(event, on.StopAsked) and event.kill:
                self._set_timer(do.SetTimer(name="patience", at=time.monotonic() + PATIENCE))
            self._handle(event)
        if more:
            for peer, message in self._channel.receive(FRAMES_A_TURN):
                self._hear(peer, message)
        self._fire_timers()
        self._files.guard(self._files.metrics.flush)
        self._report_broken_storage()

    def _patience(self) -> float:
        if self._inbox:
            return 0.0
        waits = [60.0, self._parts.display.tick()]
        if self._schedule:
            waits.append(self._schedule[0][0] - time.monotonic())
        return max(0.0, min(waits))

    def _handle(self, event: on.Event) -> None:
        for command in self._machine.handle(event, time.monotonic()):
            if self._waits_for_nothing(command):
                self._deeds[type(command)](command)
            else:
                self._held.append(command)
        self._do_held()

    def _waits_for_nothing(self, command: do.Command) -> bool:
        """Whether a command may overtake those that wait until the journal is durable."""
        if isinstance(command, do.Kill):
            return not any(isinstance(held, do.StartWorkers) for held in self._held)
        # Workers that are there already say hello at any time, and there has to be room for them by then.
        return isinstance(command, do.Acquire) and self._parts.engine.in_process

    def _do_held(self) -> None:
        """Carry commands out in order, each only when all that was persisted before it is durable."""
        while self._held and (self._files.durable or isinstance(self._held[0], do.Persist)):
            command = self._held.popleft()
            self._deeds[type(command)](command)

    def _fire_timers(self) -> None:
        now = time.monotonic()
        while self._schedule and self._schedule[0][0] <= now:
            at, name = heapq.heappop(self._schedule)
            if self._timers.get(name) != at:
                continue  # replaced by a later one
            del self._timers[name]
            if name.startswith("silence:"):
                self._check_silence(name.removeprefix("silence:"))
            elif name == "lease":
                self._beat()
            elif name == "patience":
                self._files.give_up()
                self._do_held()
            elif name == "mirror":
                self._refresh_mirror()
            else:
                self._handle(on.TimerFired(name=name))

    def _report_broken_storage(self) -> None:
        if self._files.broken and self._outcome is None:
            self._handle(on.StorageFailed(reason=self._files.broken))

    # ---- what arrives -----------------------------------------------------------------------------------------------

    def _hear(self, peer: Peer, message: FromHost | FromWorker) -> None:
        if isinstance(peer, WorkerPeer):
            if peer.run_id == self._parts.run_id:
                self._handle(on.Heard(attempt=peer.attempt, rank=peer.rank, message=message))  # type: ignore[arg-type]
            return
        match message:
            case WorkerOutput():
                self._files.guard(self._files.logs.write, message.rank, message.data)
                self._parts.display.on_output(message.rank, message.data)
            case WorkerExited():
                self._parts.display.on_output_end(message.rank)
                self._handle(on.Exited(attempt=message.attempt, rank=message.rank, exit=message.exit))
            case NativeStacks():
                self._handle(on.NativeStacksRead(attempt=message.attempt, rank=message.rank, text=message.text))
            case HostHello() if message.limit:
                self._expect_pulse(peer.host, message.limit)
            case Pulse() if peer.host in self._host_limits:
                self._expect_pulse(peer.host, self._host_limits[peer.host][0])
                self._channel.send(peer, Pulse())

    def _beat(self) -> None:
        self._files.beat()
        self._set_timer(do.SetTimer(name="lease", at=time.monotonic() + self._files.lease.interval))

    def _refresh_mirror(self) -> None:
        self._files.refresh()
        self._set_timer(do.SetTimer(name="mirror", at=time.monotonic() + REFRESH))

    def _expect_pulse(self, host: str, limit: float) -> None:
        self._host_limits[host] = (limit, time.monotonic())
        self._set_timer(do.SetTimer(name=f"silence:{host}", at=time.monotonic() + limit))

    def _check_silence(self, host: str) -> None:
        limit, heard_at = self._host_limits[host]
        silent = time.monotonic() - heard_at
        self._handle(on.HostLost(host=host, reason=f"host {host} was silent for {silent:.1f} s (limit {limit:g} s)"))

    # ---- deeds ------------------------------------------------------------------------------------------------------

    def _acquire(self, command: do.Acquire) -> None:
        self._give_room_back()
        request, total = self._parts.job.request, self._parts.engine.total()
        # Nobody waits for more than the machines can ever give.
        least = max(request.min_workers, min(command.at_least, fitting(request, total)))
        asked = msgspec.structs.replace(request, min_workers=least)
        self._lease = self._parts.engine.acquire(asked, Ticketed(self, command.ticket))

    def _release(self, command: do.Release) -> None:
        self._give_room_back()

    def _give_room_back(self) -> None:
        if self._lease is not None:
            self._channel.forget_hosts()
            self._lease.release()
            self._lease = None

    def _start_workers(self, command: do.StartWorkers) -> None:
        if self._parts.engine.in_process:
            return  # they are there already, and say hello by themselves
        job = self._parts.job
        cpus = job.request.resources.get("CPU", 0.0) if "CPU" in job.request.explicit else 0.0
        for placement in command.workers:
            self._files.guard(self._files.logs.create, placement.ranks.world_rank)
            order = StartWorker(
                attempt=command.attempt,
                rank=placement.ranks.world_rank,
                run_id=self._parts.run_id,
                environment=worker_environment(os.environ, placement, job.name),
                directory=os.getcwd(),
                import_path=[path or os.getcwd() for path in sys.path],
                arguments=list(sys.argv),
                preload=[*job.framework.preload, *self._files.preload],
                fork=job.framework.forkable,
                threads=max(1, int(cpus)) if cpus else 0,
            )
            self._channel.send(HostPeer(placement.host), order)

    def _set_up(self, command: do.SetUp) -> None:
        job, ranks = self._parts.job, command.ranks
        setup = Setup(
            task=self._parts.task.task,
            sources=self._parts.task.sources,
            ranks=ranks,
            run_name=job.name,
            run_path=str(self._files.work),
            trial_id=self._parts.run_id,
            attempt=command.attempt,
            checkpoint=command.checkpoint,
            checkpoint_report=command.checkpoint_report,
            resources=job.request.resources,
            metadata=self._files.metadata,
        )
        self._channel.send(WorkerPeer(self._parts.run_id, command.attempt, ranks.world_rank), setup)

    def _tell(self, command: do.Tell) -> None:
        self._channel.send(WorkerPeer(self._parts.run_id, command.attempt, command.rank), command.message)

    def _kill(self, command: do.Kill) -> None:
        group = self._machine.group
        if self._parts.engine.in_process or group is None:
            for rank in command.ranks:
                self.post(on.Exited(attempt=command.attempt, rank=rank, exit=ExitInfo(pid=os.getpid(), code=0)))
            return
        for host, ranks in group.by_host(command.ranks).items():
            self._channel.send(HostPeer(host), KillWorkers(attempt=command.attempt, ranks=ranks))

    def _dump_native_stacks(self, command: do.DumpNativeStacks) -> None:
        group = self._machine.group
        if self._parts.engine.in_process or group is None:
            for rank in command.pids:  # there is no host that could look
                self.post(on.NativeStacksRead(attempt=command.attempt, rank=rank, text=""))
            return
        for host, ranks in group.by_host(command.pids).items():
            pids = {rank: command.pids[rank] for rank in ranks}
            self._channel.send(HostPeer(host), ReadStacks(attempt=command.attempt, pids=pids))

    def _persist(self, command: do.Persist) -> None:
        self._files.persist(command.record)

    def _write_row(self, command: do.WriteRow) -> None:
        self._files.metrics.add(command.row)
        self._tell_callbacks("on_report", command.row)

    def _committed(self, n: int, path: str) -> None:
        self._tell_callbacks("on_checkpoint", n, path, self._machine.last_row)

    def _set_timer(self, command: do.SetTimer) -> None:
        self._timers[command.name] = command.at
        heapq.heappush(self._schedule, (command.at, command.name))

    def _keep_stacks(self, command: do.KeepStacks) -> None:
        self._files.guard(self._files.keep_stacks, command.attempt, command.rank, command.text)
        self._tell_callbacks("on_message", f"stacks of rank {command.rank}:\n{command.text.rstrip()}", "warning")

    def _say(self, command: do.Say) -> None:
        self._tell_callbacks("on_message", command.text, command.level)

    def _notify(self, command: do.Notify) -> None:
        self._tell_callbacks("on_state", command.state.value, command.attempt, command.workers)

    def _finish(self, command: do.Finish) -> None:
        self._outcome = command

    def _tell_callbacks(self, method: str, *arguments: Any) -> None:
        for callback in self._callbacks:
            try:
                getattr(callback, method)(*arguments)
            except Exception as error:
                text = f"{type(callback).__name__}.{method} raised {type(error).__name__}: {error}; the run goes on"
                self._parts.display.on_message(text, "warning")
