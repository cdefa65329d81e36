"""Worker processes that run trial after trial: who sits where now, and who waits for the next."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from shoal._core import commands as do
from shoal._core import events as on
from shoal._core.group import Group, Phase
from shoal._core.messages import ExitInfo, Farewell, KillWorkers, Setup, WorkerHello
from shoal._runtime.channel import HostPeer, WorkerPeer
from shoal._runtime.workers import Workers


@dataclass
class Seat:
    """A process, under the name with which it was started, and the trial that it runs now."""

    process: WorkerPeer
    host: str
    devices: tuple[str, ...]
    trial: WorkerPeer | None
    pid: int = 0


class Seats:
    """All such processes of one search."""

    def __init__(self) -> None:
        self._seats: dict[WorkerPeer, Seat] = {}
        self._by_trial: dict[WorkerPeer, Seat] = {}

    def now(self, process: WorkerPeer) -> WorkerPeer | None:
        """Return as whom a process speaks now; ``None`` if it runs no trial."""
        seat = self._seats.get(process)
        return seat.trial if seat is not None else process

    def of(self, trial: WorkerPeer) -> Seat | None:
        """Return where a trial runs."""
        return self._by_trial.get(trial)

    def idle(self, host: str, devices: tuple[str, ...]) -> Seat | None:
        """Return a process that waits on this host, with these devices."""
        found = (
            s for s in self._seats.values() if s.trial is None and (s.host, s.devices) == (host, devices) and s.pid
        )
        return next(found, None)

    def add(self, seat: Seat) -> None:
        """A process is started for a trial."""
        self._seats[seat.process] = seat
        assert seat.trial is not None
        self._by_trial[seat.trial] = seat

    def take(self, seat: Seat, trial: WorkerPeer) -> None:
        """A trial takes the place of the last one."""
        seat.trial = trial
        self._by_trial[trial] = seat

    def leave(self, seat: Seat) -> None:
        """A trial is done, and the process waits."""
        if seat.trial is not None:
            self._by_trial.pop(seat.trial, None)
        seat.trial = None

    def gone(self, process: WorkerPeer) -> None:
        """A process has ended."""
        seat = self._seats.pop(process, None)
        if seat is not None:
            self.leave(seat)


class SeatedWorkers(Workers):
    """The worker of a trial, in a process that others have used before, if one waits. Groups get their own processes.

    Parameters
    ----------
    seats : Seats
        The search's.
    soon : callable
        Does something after what is being done now.
    group : callable
        Returns the run's workers.
    """

    def __init__(
        self,
        run_id: str,
        *,
        seats: Seats,
        soon: Callable[[Callable[[], None]], None],
        hear: Callable[[on.Event], None],
        group: Callable[[], Group | None],
        **common: Any,
    ):
        super().__init__(run_id, **common)
        self._seats, self._soon, self._hear, self._group = seats, soon, hear, group

    def start(self, command: do.StartWorkers) -> None:
        if len(command.workers) > 1:
            super().start(command)
            return
        (placement,) = command.workers
        trial = WorkerPeer(self._run_id, command.attempt, 0)
        seat = self._seats.idle(placement.host, placement.devices)
        if seat is None:
            super().start(command)
            self._seats.add(Seat(trial, placement.host, placement.devices, trial))
            return
        self._seats.take(seat, trial)
        hello = on.Heard(attempt=command.attempt, rank=0, message=WorkerHello(token="", pid=seat.pid))
        self._soon(partial(self._hear, hello))

    def set_up(self, command: do.SetUp) -> None:
        seat = self._seats.of(WorkerPeer(self._run_id, command.attempt, command.ranks.world_rank))
        if seat is None:
            super().set_up(command)
        else:
            group = self._group()
            seat.pid = seat.pid or (group.workers[0].pid if group else 0)
            self._send(seat.process, self.setup(command))

    def setup(self, command: do.SetUp) -> Setup:
        reused = command.ranks.world_size == 1
        return msgspec.structs.replace(super().setup(command), reused=reused)

    def tell(self, command: do.Tell) -> None:
        seat = self._seats.of(WorkerPeer(self._run_id, command.attempt, command.rank))
        if seat is None:
            super().tell(command)
            return
        group = self._group()
        done = group is not None and group.workers[command.rank].phase is Phase.FINISHED
        if not (isinstance(command.message, Farewell) and done):
            self._send(seat.process, command.message)  # a process whose trial has failed is not used again
            return
        self._seats.leave(seat)
        left = on.Exited(attempt=command.attempt, rank=command.rank, exit=ExitInfo(pid=seat.pid, code=0))
        self._soon(partial(self._hear, left))

    def kill(self, command: do.Kill, group: Group | None) -> None:
        seat = self._seats.of(WorkerPeer(self._run_id, command.attempt, 0))
        if seat is None:
            super().kill(command, group)
            return
        name, attempt, rank = seat.process
        self._send(HostPeer(seat.host), KillWorkers(run_id=name, attempt=attempt, ranks=[rank]))
