"""The process that workers are forked from: single-threaded, with the framework's modules loaded once.

It takes orders from the host's network side over a socket pair, reaps its children and says how each ended. When the
network side is gone, it kills them all and ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import selectors
import signal
import socket
import sys
import tempfile
import traceback
import warnings
from typing import NoReturn

import msgspec

from shoal._core.messages import ExitInfo
from shoal._host import wire
from shoal._host.exits import exit_info, out_of_memory_kills
from shoal._worker import main as worker
from shoal._worker.process import Birth, become, die_with_parent, make_ready, set_environment, set_signal

PR_SET_CHILD_SUBREAPER = 36
ENDS = tuple(map(int, (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)))
DEFAULT = int(signal.SIG_DFL)
NOTICES = (int(signal.SIGUSR1), int(signal.SIGUSR2))


class ForkServer:
    """Starts workers, one fork each, and reaps them."""

    def __init__(self, sock: socket.socket):
        self._sock = sock
        self._workers: dict[int, wire.Key] = {}
        self._preloaded: set[str] = set()
        self._decoder: msgspec.msgpack.Decoder[wire.Order] = msgspec.msgpack.Decoder(wire.Order)
        self._oom_kills = out_of_memory_kills()
        self._environment = dict(os.environ)

    def serve(self) -> None:
        """Work until the network side is gone, then leave nothing behind."""
        make_ready()
        worker.make_ready()
        gc.freeze()
        wake_read, wake_write = os.pipe()
        os.set_blocking(wake_read, False)
        os.set_blocking(wake_write, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        with selectors.DefaultSelector() as selector:
            selector.register(self._sock, selectors.EVENT_READ)
            selector.register(wake_read, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    if key.fileobj is self._sock:
                        if not self._take_order():
                            self._kill_everything()
                            return
                    else:
                        os.read(wake_read, 4096)
                self._reap()

    def _take_order(self) -> bool:
        payload, descriptors = wire.receive(self._sock)
        if not payload:
            return False
        order = self._decoder.decode(payload)
        if isinstance(order, wire.Kill):
            for pid in [pid for pid, key in self._workers.items() if key == order.key]:
                kill_family(pid)
        else:
            self._start(order, descriptors[0])
            os.close(descriptors[0])
        return True

    def _start(self, order: wire.Spawn, output: int) -> None:
        if order.birth.fork:
            self._preload(order.birth)
            set_environment(order.birth.environment)  # here, where it is nearly that of the last worker already
        with warnings.catch_warnings():
            # Threads of this process belong to numerical libraries, which look after forks by themselves.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid:
            self._workers[pid] = order.key
            return
        try:
            self._become_child(output, order.birth)
            if order.birth.fork:
                become(order.birth)
                worker.main(order.birth.boot)
            else:
                execute(order.birth)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(70)

    def _become_child(self, output: int, birth: Birth) -> None:
        signal.set_wakeup_fd(-1)
        # In a job of SLURM the notices mean the job, and what does not know them goes on.
        for number in ENDS if "SLURM_JOB_ID" in birth.environment else ENDS + NOTICES:
            set_signal(number, DEFAULT)
        os.setsid()
        self._sock.close()
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)

    def _preload(self, birth: Birth) -> None:
        """Import what the framework names. What cannot be imported here fails, and is told, in the worker itself."""
        over_network = ["shoal._worker.network"] if birth.boot.endpoint.server_key else []
        missing = [name for name in [*over_network, *birth.preload] if name not in self._preloaded]
        if not missing:
            return
        set_environment(self._environment)  # not that of a worker, with the number of its threads
        before = sys.path[:]
        sys.path[:] = birth.import_path
        gc.disable()  # nothing that is imported is garbage, and looking for it takes a tenth of the time
        for name in missing:
            try:
                importlib.import_module(name)
            except Exception:
                traceback.print_exc()
        sys.path[:] = before
        self._preloaded.update(missing)
        # Objects that exist now live as long as this process: a collection in a worker must not copy their pages.
        gc.freeze()
        gc.enable()

    def _reap(self) -> None:
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            key = self._workers.pop(pid, None)
            if key is None:
                continue  # an orphan of a worker, adopted and now gone
            self._end_what_is_left(pid)
            wire.send(self._sock, wire.Gone(key=key, exit=self._describe(pid, status, usage.ru_maxrss)))

    def _end_what_is_left(self, pid: int) -> None:
        """Kill what a worker that is gone has started. What it has left behind is a child of this process now."""
        if sys.platform == "linux" and children() <= self._workers.keys():
            return
        kill_family(pid, itself=False)
        if not self._workers:
            kill_orphans()

    def _describe(self, pid: int, status: int, max_rss: int) -> ExitInfo:
        killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        kills = out_of_memory_kills() if killed else 0
        info = exit_info(pid, status, max_rss, out_of_memory=kills > self._oom_kills)
        if info.out_of_memory:
            self._oom_kills = kills
        return info

    def _kill_everything(self) -> None:
        for pid in self._workers:
            kill_family(pid)
        kill_orphans()


def execute(birth: Birth) -> NoReturn:
    """Replace this process by a fresh interpreter that is a worker."""
    with tempfile.TemporaryFile(buffering=0) as boot:
        boot.write(msgspec.msgpack.encode(birth))
        boot.seek(0)
        read = os.dup(boot.fileno())
    os.set_inheritable(read, True)
    environment = {**birth.environment, "PYTHONPATH": os.pathsep.join(path for path in birth.import_path if path)}
    os.execve(sys.executable, [sys.executable, "-m", "shoal._worker", str(read)], environment)


def kill_family(pid: int, *, itself: bool = True) -> None:
    """Kill a worker and every process of its session."""
    if itself:
        _kill(pid)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    if sys.platform == "linux":
        for other in _processes():
            if other != pid and _session_of(other) == pid:
                _kill(other)


def kill_orphans() -> None:
    """Kill processes that workers started and left behind in sessions of their own. No worker is alive here."""
    for pid in children():
        _kill(pid)


def children() -> set[int]:
    """Return the processes that are children of this one; empty where that cannot be seen."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children") as file:
            return set(map(int, file.read().split()))
    except OSError:
        return set()


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _session_of(pid: int) -> int:
    try:
        return os.getsid(pid)
    except OSError:
        return -1


def run(sock: socket.socket) -> NoReturn:
    """Be the fork server of the host at the other end of the socket. Never returns."""
    die_with_parent()
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    try:
        ForkServer(sock).serve()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)
