"""The network side of a host: takes orders of supervisors, passes on what workers print and how they end.

A host can serve several supervisors at once, each over a link of its own. It reads no report: workers talk straight to
their supervisor.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import msgspec
import zmq

from shoal._core.messages import (
    Boot,
    Endpoint,
    FromHost,
    HostHello,
    HostLeaves,
    KeepTask,
    KillWorkers,
    NativeStacks,
    Pulse,
    ReadStacks,
    StartWorker,
    ToHost,
    WorkerExited,
    WorkerOutput,
)
from shoal._host import scratch, wire
from shoal._host.native import StackReader
from shoal._host.output import Output
from shoal._host.place import import_path, machine, network_variables
from shoal._worker.connection import connection, kept_task
from shoal._worker.process import Birth

BATCH_SECONDS = 0.02  # output waits this long for more of it
PULSES_PER_LIMIT = 4
FRAMES_IN_FLIGHT = 1000


class Serve(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Order of the engine: take orders of the supervisor at ``endpoint`` until dropped."""

    run_id: str
    host: str
    endpoint: Endpoint
    limit: float | None = None


class Drop(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Order of the engine: the supervisor of this run is done; end what is left of its workers."""

    run_id: str
    host: str = ""


class Names(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Which host this is, where several get the same orders: names by machine. It leaves orders for others alone."""

    names: dict[str, str]


class End(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Order of the engine: end."""

    host: str


Control = Serve | Drop | Names | End


class Link:
    """The conversation with one supervisor."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], order: Serve, hostname: str):
        self.order = order
        self.heard_at = time.monotonic()
        self.pulse_at = self.heard_at
        self._encode = msgspec.msgpack.Encoder().encode
        self.connection = connection(order.endpoint, f"h/{order.host}", FRAMES_IN_FLIGHT, context)
        self.say(HostHello(token=order.endpoint.token, hostname=hostname, pid=os.getpid(), limit=order.limit))

    def say(self, message: FromHost) -> bool:
        """Send a message; false where the supervisor is so far behind that it must be tried again later."""
        return self.connection.send(self._encode(message))

    def close(self) -> None:
        """Close the connection."""
        self.connection.close(linger=0.5)


class Host:
    """One host process.

    Parameters
    ----------
    forks : socket
        The other end is the fork server.
    directory : Path
        Private scratch space of this host.
    parent : int
        A process whose end is the end of this host.
    """

    def __init__(self, forks: socket.socket, directory: Path, parent: int):
        self._forks = forks
        self._directory = directory
        self._hostname = machine()
        self._name = ""
        self._context = zmq.Context(1)  # starts threads when there is a supervisor on another machine
        self._poller = zmq.Poller()
        self._links: dict[str, Link] = {}
        self._outputs: dict[wire.Key, Output] = {}
        self._exits: list[wire.Gone] = []
        self._served: dict[str, str] = {}  # the supervisor of each run that has workers here
        self._tasks: defaultdict[str, list[Path]] = defaultdict(list)  # large ones, kept for the workers of a run
        self._stacks = StackReader()
        self._quiet_until = 0.0
        self._listening: set[int] = set()
        self._control_rest = b""
        self._control_decoder: msgspec.json.Decoder[Control] = msgspec.json.Decoder(Control)
        self._order_decoder: msgspec.msgpack.Decoder[ToHost] = msgspec.msgpack.Decoder(ToHost)
        self._gone_decoder = msgspec.msgpack.Decoder(wire.Gone)
        self._parent = os.pidfd_open(parent) if parent and hasattr(os, "pidfd_open") else -1
        self._poller.register(0, zmq.POLLIN)
        self._poller.register(forks.fileno(), zmq.POLLIN)
        self._poller.register(self._stacks.descriptor, zmq.POLLIN)
        if self._parent >= 0:
            self._poller.register(self._parent, zmq.POLLIN)

    def serve(self) -> None:
        """Work until the engine's pipe closes, the parent dies, or the fork server is gone."""
        while True:
            self._listen_to_outputs()
            for source, _ in self._poller.poll(int(self._patience() * 1000) + 1):
                if source == 0:
                    if not self._take_control():
                        return
                elif source == self._parent:
                    return
                elif source == self._forks.fileno():
                    if not self._take_exit():
                        return
                elif source == self._stacks.descriptor:
                    self._tell_stacks()
                else:
                    self._listen_to(source)
            now = time.monotonic()
            if now >= self._quiet_until:
                self._pass_outputs_on()
            self._pass_exits_on()
            self._beat(now)
            for link in self._links.values():
                self._watch(link)

    def close(self) -> None:
        """Close the connections. Closing the socket pair ends the fork server, and with it every worker."""
        self._forks.close()
        for link in self._links.values():
            link.close()
        self._context.term()

    # ---- orders -----------------------------------------------------------------------------------------------------

    def _take_control(self) -> bool:
        data = os.read(0, 65536)
        if not data:
            return False
        *lines, self._control_rest = (self._control_rest + data).split(b"\n")
        for line in lines:
            order = self._control_decoder.decode(line)
            if isinstance(order, Names):
                self._name = order.names.get(machine(), "")
                print(f"shoal host ready: {self._name}", flush=True)
            elif self._name and order.host and order.host != self._name:
                continue
            elif isinstance(order, Serve):
                link = self._links[order.run_id] = Link(self._context, order, self._hostname)
                self._poller.register(link.connection.source, zmq.POLLIN)
            elif isinstance(order, Drop):
                self._drop(order.run_id)
            else:
                return False
        return True

    def _listen_to(self, source: int | zmq.Socket[bytes]) -> None:
        """Take the orders of a supervisor, if that is what the source is: the outputs of workers are read together."""
        link = next((link for link in self._links.values() if link.connection.source == source), None)
        if link is None:
            return
        while frames := link.connection.receive():
            link.heard_at = time.monotonic()
            for frame in frames:
                self._take_order(link, self._order_decoder.decode(frame))

    def _watch(self, link: Link) -> None:
        """Wait for orders, and for room where something of what was said has not gone yet."""
        source = link.connection.source
        if not link.connection.closed:
            self._poller.register(source, zmq.POLLIN if link.connection.flush() else zmq.POLLIN | zmq.POLLOUT)
        elif source in self._poller:
            self._poller.unregister(source)

    def _take_order(self, link: Link, order: ToHost) -> None:
        if isinstance(order, StartWorker):
            self._start(link, order)
        elif isinstance(order, KeepTask):
            file = kept_task(str(self._directory), order.run_id, order.name)
            file.write_bytes(order.data)
            self._tasks[order.run_id].append(file)
        elif isinstance(order, KillWorkers):
            for rank in order.ranks:
                wire.send(self._forks, wire.Kill(key=wire.Key(order.run_id, order.attempt, rank)))
        elif isinstance(order, ReadStacks):
            self._stacks.ask(order.run_id, order.attempt, order.pids)
            self._served[order.run_id] = link.order.run_id

    def _start(self, link: Link, order: StartWorker) -> None:
        key = wire.Key(order.run_id, order.attempt, order.rank)
        scratch = self._directory / f"{order.run_id}-{order.attempt}-{order.rank}"
        output = Output()
        birth = Birth(
            boot=Boot(
                endpoint=link.order.endpoint,
                run_id=order.run_id,
                attempt=order.attempt,
                rank=order.rank,
                scratch=str(scratch),
            ),
            environment=self._environment(link, order),
            directory=order.directory if os.path.isdir(order.directory) else os.getcwd(),
            import_path=order.import_path if link.order.limit is None else import_path(order.import_path),
            arguments=order.arguments,
            preload=order.preload,
            fork=order.fork and sys.platform != "darwin",
        )
        wire.send(self._forks, wire.Spawn(key=key, birth=birth), [output.write_end])
        output.started()
        self._outputs[key] = output
        self._served[order.run_id] = link.order.run_id

    def _environment(self, link: Link, order: StartWorker) -> dict[str, str]:
        local_size = int(order.environment.get("LOCAL_WORLD_SIZE", "1"))
        fair_share = max(1, len(os.sched_getaffinity(0)) // local_size) if hasattr(os, "sched_getaffinity") else 1
        threads = str(order.threads or fair_share)
        environment = {"OMP_NUM_THREADS": threads, "PYTHONUNBUFFERED": "1", **order.environment}
        if link.order.limit is None:
            return environment
        return {**os.environ, **network_variables(link.order.endpoint.address, os.environ), **environment}

    def _drop(self, run_id: str) -> None:
        link = self._links.pop(run_id, None)
        if link is None:
            return
        for key in self._outputs:
            if self._served.get(key.run_id) == run_id:
                wire.send(self._forks, wire.Kill(key=key))
        link.say(HostLeaves())
        if link.connection.source in self._poller:
            self._poller.unregister(link.connection.source)
        link.close()

    def _link_of(self, run_id: str) -> Link | None:
        """Return the conversation with the supervisor of a run."""
        return self._links.get(self._served.get(run_id, run_id))

    # ---- what workers do --------------------------------------------------------------------------------------------

    def _patience(self) -> float:
        now = time.monotonic()
        waits = [60.0]
        waits += [link.pulse_at - now for link in self._links.values() if link.order.limit]
        if self._quiet_until > now:
            waits.append(self._quiet_until - now)
        if self._exits or any(output.held for output in self._outputs.values()):
            waits.append(0.05)
        return max(0.0, min(waits))

    def _listen_to_outputs(self) -> None:
        """Watch the pipes of workers, but not for a moment after each batch: a line a message would slow training."""
        quiet = time.monotonic() < self._quiet_until
        wanted = set() if quiet else {o.read_end for o in self._outputs.values() if o.open and not o.held}
        for descriptor in self._listening - wanted:
            self._poller.unregister(descriptor)
        for descriptor in wanted - self._listening:
            self._poller.register(descriptor, zmq.POLLIN)
        self._listening = wanted

    def _pass_outputs_on(self) -> None:
        passed = False
        for key, output in self._outputs.items():
            passed = self._pass_on(key, output) or passed
        if passed:
            self._quiet_until = time.monotonic() + BATCH_SECONDS

    def _pass_on(self, key: wire.Key, output: Output) -> bool:
        link = self._link_of(key.run_id)
        data = output.take()
        if not data or link is None:
            return False
        if link.say(WorkerOutput(run_id=key.run_id, attempt=key.attempt, rank=key.rank, data=data)):
            return True
        output.put_back(data)
        return False

    def _take_exit(self) -> bool:
        payload, _ = wire.receive(self._forks)
        if not payload:
            return False
        self._exits.append(self._gone_decoder.decode(payload))
        return True

    def _pass_exits_on(self) -> None:
        """Tell the end of workers, each after the last of its output."""
        waiting, self._exits = self._exits, []
        for gone in waiting:
            output = self._outputs.get(gone.key)
            link = self._link_of(gone.key.run_id)
            if output is not None:
                while self._pass_on(gone.key, output):
                    pass
                if output.held and link is not None:
                    self._exits.append(gone)
                    continue
                self._forget(gone.key, output)
            message = WorkerExited(run_id=gone.key.run_id, attempt=gone.key.attempt, rank=gone.key.rank, exit=gone.exit)
            if link is not None and not link.say(message):
                self._exits.append(gone)

    def _forget(self, key: wire.Key, output: Output) -> None:
        del self._outputs[key]
        if output.read_end in self._listening:
            self._poller.unregister(output.read_end)
            self._listening.discard(output.read_end)
        output.close()
        if not any(other.run_id == key.run_id for other in self._outputs):
            self._served.pop(key.run_id, None)
            for task in self._tasks.pop(key.run_id, []):
                task.unlink(missing_ok=True)
        shutil.rmtree(self._directory / f"{key.run_id}-{key.attempt}-{key.rank}", ignore_errors=True)

    def _tell_stacks(self) -> None:
        for dump in self._stacks.take():
            link = self._link_of(dump.run_id)
            if link is not None:
                link.say(NativeStacks(run_id=dump.run_id, attempt=dump.attempt, rank=dump.rank, text=dump.text))

    # ---- the fence --------------------------------------------------------------------------------------------------

    def _beat(self, now: float) -> None:
        """Show that we live; end the workers of a supervisor that has been silent for its limit."""
        for run_id, link in list(self._links.items()):
            limit = link.order.limit
            if limit is None or now < link.pulse_at:
                continue
            link.pulse_at = now + limit / PULSES_PER_LIMIT
            if now - link.heard_at > limit:
                print(f"no word of the supervisor of {run_id} for {limit} s: ending its workers", flush=True)
                self._drop(run_id)
            else:
                link.say(Pulse())


def ignore_signals(parent: int) -> None:
    """Leave signals to the workers: a launcher may send them to every process. A host ends with its engine's pipe."""
    ours = [signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, *([] if parent else [signal.SIGTERM])]
    for number in ours:
        signal.signal(number, signal.SIG_IGN)


def run(forks: socket.socket, directory: Path, parent: int) -> Any:
    """Be the network side of a host until there is nobody left to serve."""
    ignore_signals(parent)
    host = Host(forks, directory, parent)
    held = scratch.hold(directory)
    scratch.tidy(directory.parent)
    try:
        host.serve()
    finally:
        host.close()
        shutil.rmtree(directory, ignore_errors=True)
        os.close(held)
