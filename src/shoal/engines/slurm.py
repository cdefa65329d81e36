"""SLURM as the cluster: hosts on the machines of the allocation that this process runs in, started with ``srun``."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn

import msgspec

from shoal._core.errors import ShoalError
from shoal._core.nodes import Node, check_nodes
from shoal._core.scaling import GroupRequest
from shoal._core.slurm import REQUEUE, TOGETHER, Allocation, ended_tasks, host_step, own_job, step_environment
from shoal._host.place import host_environment
from shoal._runtime.addresses import own_address
from shoal.engines.cluster import LIMIT, ClusterEngine
from shoal.engines.slurm_jobs import Jobs

READY = b"shoal host ready: "
_Waiting = tuple[str, Callable[[], None], Callable[[str], None]]


class SlurmEngine(ClusterEngine):
    """Runs workers on the machines of this SLURM job.

    Parameters
    ----------
    heartbeat_s : float
        After how many seconds of silence a machine counts as lost.
    """

    name = "slurm"
    preemption_signals = (signal.SIGUSR1,)
    preemption_reason = "SLURM takes the job back"

    def __init__(self, heartbeat_s: float = LIMIT):
        super().__init__(heartbeat_s)
        self.allocation = Allocation.of(os.environ)
        self._jobs = Jobs(Path(os.environ[TOGETHER])) if TOGETHER in os.environ else None
        self.where = f"the SLURM job {self.allocation.job}"
        if self._jobs:
            self.where = f"the array {os.environ['SLURM_ARRAY_JOB_ID']} of SLURM jobs"
        if shutil.which("srun") is None:
            raise ShoalError(f"{self.where} is there, but the command srun is not: load SLURM's module, or set PATH")
        self.listen_on = own_address([node.name for node in self.allocation.nodes])
        self.preemption_grace_s = float(os.environ.get("SHOAL_PREEMPTION_GRACE", "60"))
        self._pending: dict[str, dict[str, _Waiting]] = {}
        self._steps: list[_Step] = []

    def nodes(self) -> list[Node]:
        here = os.environ.get("SLURMD_NODENAME", socket.gethostname())
        own = sorted(self.allocation.nodes, key=lambda node: node.name != here)
        return [*own, *self._jobs.lent(self.allocation.job)] if self._jobs else own

    def check(self, request: GroupRequest) -> None:
        """All jobs of an array ask for the same, so that what they can hold is known before they have started."""
        jobs = int(os.environ.get("SLURM_ARRAY_TASK_COUNT", "1")) if self._jobs else 1
        nodes = [n._replace(name=f"{n.name}/{k}") for k in range(jobs) for n in self.allocation.nodes]
        check_nodes(request, nodes, self.where)

    def launch(self, node: str, name: str, ready: Callable[[], None], ended: Callable[[str], None]) -> _Task:
        """Start a host with the next ``srun``: one for all machines of a job that are asked for in one go."""
        if not self._pending:
            self.do(self._start_steps)
        machine, _, job = node.partition("/")
        self._pending.setdefault(job, {})[machine] = (name, ready, ended)
        return _Task(self, node, name)

    def _start_steps(self) -> None:
        pending, self._pending = self._pending, {}
        self._steps += [_Step(hosts, job) for job, hosts in pending.items()]

    def vacated(self, node: str) -> None:
        """Let a job go that works together with this one."""
        job = node.partition("/")[2]
        if self._jobs and not any(p.host for name, p in self._places.items() if name.endswith(f"/{job}")):
            self._jobs.vacate(job)

    def order(self, name: str, order: object) -> None:
        """Give an order to one host."""
        for step in self._steps:
            if name in step.names.values():
                step.write(order)

    def close(self) -> None:
        for step in self._steps:
            step.end()
        self._steps.clear()

    def leave(self) -> NoReturn:
        """Have the job queued again and end this process: the run is to go on in the job's next start."""
        job = own_job(os.environ)
        self.shutdown()
        if os.environ.get("SHOAL_REQUEUE") != "exit" and shutil.which("scontrol"):
            done = subprocess.run(["scontrol", "requeue", job], capture_output=True, text=True, check=False)
            if done.returncode == 0:
                time.sleep(60)  # SLURM ends this process when it takes the job back
            print(f"shoal: scontrol requeue {job}: {done.stderr.strip()}", file=sys.stderr)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(REQUEUE)


class _Task:
    """A host as one task of a step."""

    def __init__(self, engine: SlurmEngine, node: str, name: str):
        self._engine, self._node, self._name = engine, node, name

    def order(self, order: Mapping[str, object]) -> None:
        self._engine.order(self._name, {**order, "host": self._name})

    def end(self) -> None:
        self._engine.order(self._name, {"type": "End", "host": self._name})


class _Step:
    """One ``srun`` and the hosts that it has started; its standard input is that of all of them."""

    def __init__(self, hosts: Mapping[str, _Waiting], job: str):
        self.names = {node: name for node, (name, _, _) in hosts.items()}
        self._ready = {name: ready for name, ready, _ in hosts.values()}
        self._ended = {node: ended for node, (_, _, ended) in hosts.items()}
        self._said: list[str] = []
        self.process = subprocess.Popen(
            host_step(list(self.names), [sys.executable, "-m", "shoal._host", "-", "0"], job),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env=host_environment(step_environment(os.environ, job)),
        )
        self.write({"type": "Names", "names": self.names})
        threading.Thread(target=self._read_output, name="shoal-srun-out", daemon=True).start()
        threading.Thread(target=self._read_errors, name="shoal-srun-err", daemon=True).start()

    def write(self, order: object) -> None:
        stdin = self.process.stdin
        if stdin is not None and not stdin.closed:
            with contextlib.suppress(BrokenPipeError):  # it has ended, which its output tells
                stdin.write(msgspec.json.encode(order) + b"\n")
                stdin.flush()

    def end(self) -> None:
        """End all hosts, and wait for them."""
        self._ended.clear()
        if self.process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout=10)
            self.process.kill()

    def _read_output(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            ready = self._ready.get(line.removeprefix(READY).strip().decode()) if line.startswith(READY) else None
            if ready is not None:
                ready()
            else:
                self._said = [*self._said[-4:], line.decode("utf-8", "replace").strip()]

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        for raw in self.process.stderr:
            line = raw.decode("utf-8", "replace").strip()
            self._said = [*self._said[-4:], line]
            for node in ended_tasks(line):
                if ended := self._ended.pop(node, None):
                    ended(line.removeprefix("srun: error: "))
        code = self.process.wait()
        for ended in list(self._ended.values()):
            ended(f"srun ended with code {code}: {'; '.join(filter(None, self._said))}")
