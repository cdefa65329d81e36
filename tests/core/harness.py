"""Drives a run without processes: says what workers, hosts and storage would say, and keeps what the run wanted."""

from __future__ import annotations

from typing import Any

from shoal._core import commands as do
from shoal._core import events as on
from shoal._core.failure import FailurePolicy
from shoal._core.messages import (
    ErrorInfo,
    ExitInfo,
    Failed,
    FileEntry,
    Finished,
    Offer,
    Ready,
    Report,
    Store,
    Stored,
    WorkerHello,
)
from shoal._core.records import History, Record
from shoal._core.retention import CheckpointPolicy
from shoal._core.run import Run
from shoal._core.scaling import GroupRequest
from shoal._core.spec import RunSpec
from shoal._core.states import RunState


class Story:
    """A run with ``workers`` ranks on one host, and its whole surroundings as method calls."""

    def __init__(
        self,
        workers: int | tuple[int, int] = 2,
        *,
        resize_interval: float = 60.0,
        max_failures: int = 0,
        policy: FailurePolicy | None = None,
        keep: CheckpointPolicy | None = None,
        history: History | None = None,
    ):
        low, high = (workers, workers) if isinstance(workers, int) else workers
        request = GroupRequest(min_workers=low, max_workers=high, resources={"CPU": 1.0})
        self.size = high
        self.run = Run(
            RunSpec(
                request=request,
                resize_interval=resize_interval,
                failure=policy or FailurePolicy(max_failures=max_failures),
                checkpoint=keep or CheckpointPolicy(),
            ),
            history,
        )
        self.now = 0.0
        self.without_py_spy = True
        self.damage: dict[int, str] = {}
        self.done: list[do.Command] = []
        self.timers: dict[str, float] = {}
        self.see(on.Begin(wall=1000.0))

    # ---- what happens -----------------------------------------------------------------------------------------------

    def see(self, event: on.Event) -> list[do.Command]:
        commands = self.run.handle(event, self.now)
        self.done += commands
        for command in commands:
            if isinstance(command, do.DumpNativeStacks) and self.without_py_spy:
                for rank in command.pids:
                    self.see(on.NativeStacksRead(attempt=command.attempt, rank=rank, text=""))
            if isinstance(command, do.SetTimer):
                self.timers[command.name] = command.at
            if isinstance(command, do.Inspect):
                self.see(on.Inspected(n=command.checkpoint.n, damage=self.damage.get(command.checkpoint.n, "")))
        return commands

    def acquired(self, *counts: int) -> Story:
        slots = tuple(
            on.HostSlots(host=f"h{i}", hostname=f"h{i}", count=count) for i, count in enumerate(counts or (self.size,))
        )
        self.see(on.Acquired(slots=slots, ticket=self.ticket))
        return self

    def training(self) -> Story:
        """Bring the group to where every rank trains."""
        if self.run.state in {RunState.PENDING, RunState.RESTARTING, RunState.RESIZING}:
            self.acquired()
        for rank in range(self.size):
            self.hears(rank, WorkerHello(token="", pid=100 + rank))
            self.hears(rank, Ready())
        assert self.run.state is RunState.RUNNING
        return self

    def hears(self, rank: int, message: Any, attempt: int | None = None) -> list[do.Command]:
        group = self.run.group
        assert group is not None
        return self.see(on.Heard(attempt=attempt or group.attempt, rank=rank, message=message))

    def reports(self, rank: int, n: int, files: tuple[str, ...] | None = None, **metrics: Any) -> list[do.Command]:
        entries = None if files is None else [FileEntry(path=path, size=1) for path in files]
        return self.hears(rank, Report(n=n, metrics=metrics, at=1000.0 + self.now, files=entries))

    def stores(self, rank: int, n: int, *files: str) -> list[do.Command]:
        return self.hears(rank, Stored(n=n, files=[FileEntry(path=path, size=rank + 1) for path in files]))

    def checkpoint(self, n: int, **metrics: Any) -> None:
        """Have rank 0 report and store a checkpoint and the others report without one, up to its commit."""
        self.reports(0, n, ("model",), **metrics)
        for rank in range(1, self.size):
            self.reports(rank, n, **metrics)
        self.stores(0, n, "model")
        self.see(on.CommitDone(n=n))

    def raises(self, rank: int, kind: str = "ValueError", message: str = "bad") -> list[do.Command]:
        return self.hears(rank, Failed(error=ErrorInfo(type=kind, message=message)))

    def finishes(self, rank: int, **fields: Any) -> list[do.Command]:
        return self.hears(rank, Finished(**fields))

    def exits(self, rank: int, *, signal: int | None = None, code: int | None = None) -> list[do.Command]:
        group = self.run.group
        assert group is not None
        info = ExitInfo(pid=100 + rank, signal=signal, code=None if signal else code or 0)
        return self.see(on.Exited(attempt=group.attempt, rank=rank, exit=info))

    def offers(self, rank: int, key: str, data: bytes = b"") -> list[do.Command]:
        return self.hears(rank, Offer(key=key, data=data))

    def wait(self, seconds: float) -> None:
        """Let time pass and timers fire."""
        end = self.now + seconds
        while True:
            name, at = min(self.timers.items(), key=lambda item: item[1], default=("", float("inf")))
            if at > end:
                break
            del self.timers[name]
            self.now = max(self.now, at)
            self.see(on.TimerFired(name=name))
        self.now = end

    def reap(self) -> None:
        """Let every worker that was told to end, or killed, be gone."""
        group = self.run.group
        assert group is not None
        for worker in list(group.alive()):
            if not self.run.state.final and self.run.group is group:
                self.exits(worker.rank, signal=9 if worker.killed else None)

    @property
    def ticket(self) -> int:
        """The number of the last request for room."""
        return self.all(do.Acquire)[-1].ticket

    def room(self, workers: int) -> None:
        """Let the capacity of the machines change."""
        self.see(on.CapacityChanged(workers=workers, ticket=self.ticket))

    # ---- what the run wanted ----------------------------------------------------------------------------------------

    def all(self, kind: type[do.Command]) -> list[Any]:
        return [command for command in self.done if isinstance(command, kind)]

    def records(self, kind: type[Record]) -> list[Any]:
        return [command.record for command in self.all(do.Persist) if isinstance(command.record, kind)]

    def told(self, rank: int, kind: type) -> list[Any]:
        return [c.message for c in self.all(do.Tell) if c.rank == rank and isinstance(c.message, kind)]

    def stores_asked(self, rank: int) -> dict[int, list[str]]:
        return {message.n: message.files for message in self.told(rank, Store)}

    @property
    def end(self) -> do.Finish:
        (finish,) = self.all(do.Finish)
        return finish
