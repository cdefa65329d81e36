"""The workers of one run: started, given their task, told things and ended, through the hosts that they are on."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable

from shoal._core import commands as do
from shoal._core import events as on
from shoal._core.contracts import Engine
from shoal._core.group import Group
from shoal._core.job import Job
from shoal._core.messages import ExitInfo, KeepTask, KillWorkers, ReadStacks, Setup, StartWorker, ToHost, ToWorker
from shoal._runtime.channel import HostPeer, Peer, WorkerPeer
from shoal._runtime.environment import worker_environment
from shoal._runtime.pickling import PickledTask
from shoal._runtime.rundir import RunFiles

LARGE_TASK = 2**18  # bytes; then it is sent once to each host, and not to each worker


def working_directory() -> str:
    """Return the driver's working directory; nothing where somebody has removed it."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return ""


class Workers:
    """Carries out what a run wants done with its workers.

    Parameters
    ----------
    run_id : str
        The run's identifier, under which its workers are known.
    job, task, engine, files
        The run's own.
    send : callable
        Sends a message to a host or a worker.
    post : callable
        Takes an event for the run.
    decided : bool
        Whether every report of rank 0 waits for a decision.
    config : bytes
        The configuration, where it does not travel with the task.
    folder : str
        The directory of a trial in its search's.
    """

    def __init__(
        self,
        run_id: str,
        *,
        job: Job,
        task: PickledTask,
        engine: Engine,
        files: RunFiles,
        send: Callable[[Peer, ToHost | ToWorker], None],
        post: Callable[[on.Event], None],
        decided: bool = False,
        config: bytes = b"",
        folder: str = "",
    ):
        self._run_id = run_id
        self._job, self._task, self._engine, self._files = job, task, engine, files
        self._send, self._post = send, post
        self._decided = decided
        # Workers on other machines have the environment of their host.
        self._own_environment = {} if engine.listen_on and not engine.in_process else os.environ
        self._config, self._folder = config, folder
        large = len(task.task) > LARGE_TASK and not engine.in_process
        self._at_host = hashlib.sha256(task.task).hexdigest()[:16] if large else ""

    def start(self, command: do.StartWorkers) -> None:
        """Have every worker of an attempt started, unless they are there already and say hello by themselves."""
        if self._engine.in_process:
            return
        job, here = self._job, working_directory()
        cpus = job.request.resources.get("CPU", 0.0) if "CPU" in job.request.explicit else 0.0
        if self._at_host:
            for host in dict.fromkeys(placement.host for placement in command.workers):
                self._send(HostPeer(host), KeepTask(run_id=self._run_id, name=self._at_host, data=self._task.task))
        for placement in command.workers:
            if not self._config:  # thousands of trials that print nothing need no thousands of empty files
                self._files.guard(self._files.logs.create, placement.ranks.world_rank)
            order = StartWorker(
                attempt=command.attempt,
                rank=placement.ranks.world_rank,
                run_id=self._run_id,
                environment=worker_environment(self._own_environment, placement, job.name),
                directory=here,
                import_path=[path or here for path in sys.path],
                arguments=list(sys.argv),
                preload=[*job.framework.preload, *self._files.preload],
                fork=job.framework.forkable,
                threads=max(1, int(cpus)) if cpus else 0,
            )
            self._send(HostPeer(placement.host), order)

    def set_up(self, command: do.SetUp) -> None:
        """Give a worker that said hello its task."""
        self._send(WorkerPeer(self._run_id, command.attempt, command.ranks.world_rank), self.setup(command))

    def setup(self, command: do.SetUp) -> Setup:
        """Return what a worker is given."""
        return Setup(
            task=b"" if self._at_host else self._task.task,
            at_host=self._at_host,
            sources=self._task.sources,
            ranks=command.ranks,
            run_name=self._job.name,
            run_path=str(self._files.work),
            trial_id=self._run_id,
            attempt=command.attempt,
            checkpoint=command.checkpoint,
            checkpoint_report=command.checkpoint_report,
            resources=self._job.request.resources,
            metadata=self._files.metadata,
            decided=self._decided,
            config=self._config,
            folder=self._folder,
        )

    def tell(self, command: do.Tell) -> None:
        """Send a message to one worker."""
        self._send(WorkerPeer(self._run_id, command.attempt, command.rank), command.message)

    def kill(self, command: do.Kill, group: Group | None) -> None:
        """End these workers now."""
        if self._engine.in_process or group is None:
            for rank in command.ranks:
                self._post(on.Exited(attempt=command.attempt, rank=rank, exit=ExitInfo(pid=os.getpid(), code=0)))
            return
        for host, ranks in group.by_host(command.ranks).items():
            self._send(HostPeer(host), KillWorkers(run_id=self._run_id, attempt=command.attempt, ranks=ranks))

    def dump_native_stacks(self, command: do.DumpNativeStacks, group: Group | None) -> None:
        """Ask the hosts for the native stacks of these processes."""
        if self._engine.in_process or group is None:
            for rank in command.pids:  # there is no host that could look
                self._post(on.NativeStacksRead(attempt=command.attempt, rank=rank, text=""))
            return
        for host, ranks in group.by_host(command.pids).items():
            pids = {rank: command.pids[rank] for rank in ranks}
            self._send(HostPeer(host), ReadStacks(run_id=self._run_id, attempt=command.attempt, pids=pids))
