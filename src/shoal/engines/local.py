"""The engine for one machine: one host, started at the first ``fit()`` and kept for the next."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping

import msgspec
import psutil

from shoal._core.contracts import Engine, Inbox
from shoal._core.errors import InfeasibleRequest
from shoal._core.events import Acquired, CapacityChanged, HostLost, HostSlots, Infeasible
from shoal._core.scaling import GroupRequest, check_feasible, fitting, strict_resources
from shoal._host import scratch
from shoal._host.place import host_environment
from shoal._runtime.accelerators import Accelerator, accelerator_here


class LocalEngine(Engine):
    """Runs workers on this machine.

    Parameters
    ----------
    limits : mapping of str to float, optional
        Amounts that replace what was found on the machine (``CPU``, ``GPU``, ``memory`` in bytes), and custom ones.
    """

    name = "local"

    def __init__(self, limits: Mapping[str, float] | None = None):
        self._limits = dict(limits or {})
        self._accelerator, found = accelerator_here(os.environ)
        self._devices = _usable(found, self._limits.get(self._accelerator.resource))
        self._total = {**_found(self._accelerator, self._devices), **self._limits}
        self._lock = threading.RLock()
        self._used: dict[str, float] = {}
        self._free_devices = list(self._devices)
        self._active: list[LocalLease] = []
        self._waiting: list[LocalLease] = []
        self._host: HostProcess | None = None
        os.register_at_fork(after_in_child=self._forget)

    def total(self) -> Mapping[str, float]:
        return self._total

    def check(self, request: GroupRequest) -> None:
        if self._limits.get("GPU", 0.0) > len(self._devices):
            raise InfeasibleRequest(
                f"shoal.init(num_gpus={self._limits['GPU']:g}) promised more GPUs than there are: "
                f"{len(self._devices)} found"
            )
        check_feasible(request, self._total, "this machine")

    def acquire(self, request: GroupRequest, inbox: Inbox) -> LocalLease:
        lease = LocalLease(self, request, inbox)
        try:
            self.check(request)
        except InfeasibleRequest as error:
            inbox.post(Infeasible(reason=str(error)))
            return lease
        with self._lock:
            self._waiting.append(lease)
            self._grant()
        return lease

    def set_capacity(self, **amounts: float) -> None:
        """Change what this machine may give out, such as ``CPU=2`` or ``license=1``.

        Runs with a range of workers that have more than that go on with fewer; those that want more are told of room.
        What a run with a fixed number of workers has stays with it.
        """
        for name, amount in amounts.items():
            if not amount >= 0:
                raise ValueError(f"{name}={amount!r} is not possible; amounts are 0 or more")
        with self._lock:
            self._limits.update(amounts)
            self._total.update(amounts)
            self._grant()
            self._tell_of_capacity()

    def shutdown(self) -> None:
        with self._lock:
            host, self._host = self._host, None
        if host is not None:
            host.end()

    @property
    def host_pid(self) -> int | None:
        """The process id of the host, if one is running."""
        return self._host.process.pid if self._host is not None else None

    def release(self, lease: LocalLease) -> None:
        """Take a lease back and give its room to whoever waits."""
        with self._lock:
            if lease in self._waiting:
                self._waiting.remove(lease)
            if lease in self._active:
                self._active.remove(lease)
                for name, amount in lease.amounts.items():
                    self._used[name] -= amount
                self._free_devices += [device for devices in lease.devices for device in devices]
            others = {other.inbox.run_id for other in (*self._active, *self._waiting)}
            if self._host is not None and lease.inbox.run_id not in others:
                self._host.drop(lease.inbox)
            self._grant()
            self._tell_of_capacity()

    def _grant(self) -> None:
        """Give room in the order of asking; nobody overtakes, so that a large group does not starve."""
        while self._waiting:
            lease = self._waiting[0]
            available = {name: total - self._used.get(name, 0.0) for name, total in self._total.items()}
            count = fitting(lease.request, available)
            if count < lease.request.min_workers:
                return
            del self._waiting[0]
            self._active.append(lease)
            lease.amounts = {name: amount * count for name, amount in strict_resources(lease.request).items()}
            for name, amount in lease.amounts.items():
                self._used[name] = self._used.get(name, 0.0) + amount
            lease.count = lease.told = count
            each = int(lease.request.resources.get(self._accelerator.resource, 0.0))
            lease.devices = tuple(tuple(self._free_devices.pop(0) for _ in range(each)) for _ in range(count))
            host = self._start_host()
            host.serve(lease.inbox)
            slots = HostSlots(
                host=host.name,
                hostname=socket.gethostname(),
                count=count,
                devices=lease.devices,
                device_variable=self._accelerator.variable,
            )
            lease.inbox.post(Acquired(slots=(slots,)))

    def _tell_of_capacity(self) -> None:
        """Tell runs with a range of workers for how many there is room, the oldest first."""
        if all(lease.request.max_workers == 1 for lease in self._active):
            return  # a search gives room back at the end of each trial
        left = dict(self._total)
        for lease in self._active:
            fits = max(0, min(lease.count, fitting(lease.request, left)))
            for name, amount in strict_resources(lease.request).items():
                left[name] = left.get(name, 0.0) - amount * fits
            lease.fits = fits
        for lease in self._active:
            more = 0 if self._waiting else max(0, fitting(lease.request, left))
            workers = min(lease.fits + more, lease.request.max_workers)
            if lease.request.max_workers > 1 and workers != lease.told:
                lease.told = workers
                lease.inbox.post(CapacityChanged(workers=workers))

    def _start_host(self) -> HostProcess:
        if self._host is None or self._host.process.poll() is not None:
            self._host = HostProcess(self._host_ended)
        return self._host

    def _host_ended(self, host: HostProcess, how: str) -> None:
        with self._lock:
            if self._host is host:
                self._host = None
            for lease in [*self._active, *self._waiting]:
                if lease.inbox.run_id in host.serving:
                    lease.inbox.post(HostLost(host=host.name, reason=how))

    def _forget(self) -> None:
        """In a child that the driver forked: the host belongs to the parent."""
        self._lock = threading.RLock()
        if self._host is not None:
            self._host.abandon()
        self._host = None
        self._used, self._active, self._waiting = {}, [], []
        self._free_devices = list(self._devices)


class LocalLease:
    """Room for one group on this machine."""

    def __init__(self, engine: LocalEngine, request: GroupRequest, inbox: Inbox):
        self.request = request
        self.inbox = inbox
        self.amounts: dict[str, float] = {}
        self.devices: tuple[tuple[str, ...], ...] = ()
        self.count = self.fits = self.told = 0
        self._engine = engine

    def release(self) -> None:
        self._engine.release(self)


class HostProcess:
    """The host of this machine as a child process, ordered through its standard input.

    It is in a session of its own, so that Ctrl-C in a terminal reaches the driver alone, and it ends as soon as this
    process does, whichever way that happens.
    """

    def __init__(self, on_end: Callable[[HostProcess, str], None]):
        self.serving: set[str] = set()
        self._on_end = on_end
        self._ending = False
        self.directory = scratch.make()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  closed with the process
        self.process = subprocess.Popen(
            [sys.executable, "-m", "shoal._host", str(self.directory), str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
            env=host_environment(os.environ),
        )
        # A name of its own, so that what was meant for a host that has died never reaches the next.
        self.name = f"local-{self.process.pid}"
        threading.Thread(target=self._watch, name="shoal-host-watch", daemon=True).start()

    def serve(self, inbox: Inbox) -> None:
        """Have the host take orders of a supervisor."""
        if inbox.run_id not in self.serving:
            self.serving.add(inbox.run_id)
            endpoint = msgspec.to_builtins(inbox.endpoint)
            self._write({"type": "Serve", "run_id": inbox.run_id, "host": self.name, "endpoint": endpoint})

    def drop(self, inbox: Inbox) -> None:
        """Have the host end what is left of a supervisor's workers."""
        if inbox.run_id in self.serving:
            self.serving.discard(inbox.run_id)
            self._write({"type": "Drop", "run_id": inbox.run_id})

    def end(self) -> None:
        """End the host and every worker, and wait for it."""
        self._ending = True
        self._close_input()
        try:
            self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(timeout=5)

    def abandon(self) -> None:
        """Let go of a host that belongs to the parent of this process."""
        self._ending = True
        self._close_input()

    def _write(self, order: object) -> None:
        stdin = self.process.stdin
        if stdin is None or stdin.closed:
            return
        try:
            stdin.write(json.dumps(order).encode() + b"\n")
            stdin.flush()
        except BrokenPipeError:
            return  # it has ended, which _watch tells

    def _close_input(self) -> None:
        if self.process.stdin is not None:
            try:
                self.process.stdin.close()
            except BrokenPipeError:
                return

    def _watch(self) -> None:
        code = self.process.wait()
        shutil.rmtree(self.directory, ignore_errors=True)  # a host that was killed could not
        if not self._ending:
            self._log.seek(0)
            said = self._log.read().decode("utf-8", "replace").strip().splitlines()[-3:]
            how = f"its host process ended ({'signal' if code < 0 else 'code'} {abs(code)})"
            self._on_end(self, ": ".join([how, *said]))


def _found(accelerator: Accelerator, devices: list[str]) -> dict[str, float]:
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    memory = float(psutil.virtual_memory().total)
    return {"CPU": float(cpus), "GPU": 0.0, "memory": memory, accelerator.resource: float(len(devices))}


def _usable(devices: list[str], limit: float | None) -> list[str]:
    return devices if limit is None else devices[: int(limit)]
