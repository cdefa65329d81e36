"""The contracts between shoal and its plug-ins, on one page. ``shoal.abc`` opens them to users.

A plug-in is one class in one file and one line in the table ``shoal._plugins``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, NoReturn, Protocol

from shoal._core.events import Event
from shoal._core.messages import Endpoint, Ranks
from shoal._core.scaling import GroupRequest


class Inbox(Protocol):
    """The side of a supervisor that an engine sees."""

    @property
    def run_id(self) -> str:
        """The run's identifier, under which its workers are started."""
        ...

    @property
    def title(self) -> str:
        """The run's name, for people."""
        ...

    @property
    def endpoint(self) -> Endpoint:
        """Where hosts and workers of the run connect to."""
        ...

    def post(self, event: Event) -> None:
        """Hand an event over. May be called from any thread, does not block, and does nothing after the run's end."""
        ...


class Lease(Protocol):
    """Room for one worker group on the machines of an engine."""

    def release(self) -> None:
        """Give the room back. May be called more than once; hosts started for it may be kept for the next."""
        ...


class Engine(ABC):
    """Brings hosts up on machines, and nothing else.

    Attributes
    ----------
    name : str
        The name in ``shoal.init(name)``.
    grows : bool
        Whether machines come where somebody waits for them, as an autoscaler's do.
    in_process : bool
        Whether the calling process is itself the worker, so that nothing is started; see :class:`InProcessEngine`.
    listen_on : str or None
        The address on which the supervisor listens for other machines; ``None`` where a unix socket does.
    preemption_signals : tuple of int
        Signals that say that the run will be taken away, after which it stops and :meth:`leave` is called.
    preemption_reason, preemption_grace_s
        What such a signal means, and how many seconds are left then.
    """

    name: ClassVar[str]
    in_process: ClassVar[bool] = False
    grows: bool = False
    listen_on: str | None = None
    preemption_signals: tuple[int, ...] = ()
    preemption_reason: str = ""
    preemption_grace_s: float = 0.0

    @abstractmethod
    def total(self) -> Mapping[str, float]:
        """Return all resources of all machines, used or not: ``{"CPU": 8.0, "GPU": 1.0, "memory": 3.3e10}``."""

    @abstractmethod
    def check(self, request: GroupRequest) -> None:
        """Raise :class:`~shoal.errors.InfeasibleRequest` where the request can never be met. Never waits."""

    @abstractmethod
    def acquire(self, request: GroupRequest, inbox: Inbox) -> Lease:
        """Ask for room for a whole group, all or nothing.

        Returns at once. ``Acquired`` is posted when the room is there and a host on each of its machines has been told
        of ``inbox.endpoint``; ``Infeasible`` when it never will be; ``HostLost`` when a machine goes away later.
        """

    def lost(self, host: str) -> None:
        """A host was silent for longer than its limit: its machine is not to be given out before it answers again."""

    def leave(self) -> NoReturn:
        """The run has stopped since its workers were to be taken away: have this process started again, and end it."""
        raise SystemExit(1)

    @abstractmethod
    def shutdown(self) -> None:
        """End every host and free everything. The engine may be used again afterwards."""


class InProcessEngine(Engine):
    """An engine whose workers are there already: this process, and the others of its launch, are one rank each.

    Its ``acquire`` posts ``Acquired`` before it returns, since its workers do not wait to be started.

    Attributes
    ----------
    shared : int
        How often :meth:`share` was called.
    """

    in_process = True
    shared: int = 0

    @property
    @abstractmethod
    def rank(self) -> int:
        """The rank of this process; rank 0 keeps the run's directory and supervises."""

    @property
    @abstractmethod
    def address(self) -> str:
        """An address of this machine that the other ranks reach."""

    @abstractmethod
    def share(self, data: bytes) -> bytes:
        """Return on every rank what rank 0 gave. Every rank calls it once a run, in the same order."""


class WorkerSide(Protocol):
    """What a framework sees of the worker in which it is set up."""

    @property
    def ranks(self) -> Ranks:
        """The place of this worker in its group."""
        ...

    @property
    def address(self) -> str:
        """An address of this machine that the other workers reach."""
        ...

    def gather(self, key: str, data: bytes, timeout_s: float | None = None) -> list[bytes]:
        """Give ``data`` to all ranks and return everybody's, by rank. Every rank has to call it with the same key."""
        ...


class Framework(ABC):
    """Sets up inside a worker what the user's function expects: process groups, variables, devices.

    An instance is pickled on the driver and used once in each worker, so it holds plain settings only.

    Attributes
    ----------
    preload : tuple of str
        Modules that the host imports once, before workers are forked from it.
    forkable : bool
        Whether a fork is safe after those imports. If not, every worker is a fresh interpreter.
    """

    preload: ClassVar[tuple[str, ...]] = ()
    forkable: ClassVar[bool] = True

    def start(self, worker: WorkerSide) -> None:
        """Set up before the user's function runs. What it raises fails the attempt."""

    def stop(self) -> None:
        """Tidy up after the function returned. Must not wait for other ranks; not called after a failure."""


class Callback(ABC):
    """Is told what happens to a run, in the driver's process and the thread of ``fit()``.

    What a callback raises is shown and never ends the run. A method should return quickly: the run waits for it.
    """

    def on_run_start(self, name: str, path: str, **info: Any) -> None:
        """The directory of the run exists; nothing has been started yet.

        ``info`` has ``config``, the configuration of the training function, and ``began``, when the run was made
        (seconds since the epoch), also where a later driver goes on with it.
        """

    def on_attempt_start(self, attempt: int, world_size: int, **info: Any) -> None:
        """A worker group is started. ``info`` has its ``hosts`` and ``checkpoint``, the report that it goes on from."""

    def on_attempt_end(self, attempt: int, reason: str, **info: Any) -> None:
        """The last worker of an attempt is gone. ``info`` has ``reports``, how many it has made."""

    def on_failure(self, attempt: int, cause: str, **info: Any) -> None:
        """An attempt has failed, by this root cause. ``info`` has ``causes``, what is known of every rank, in order.

        What follows is told by :meth:`on_attempt_start`, if the group is started again, or by :meth:`on_run_end`.
        """

    def on_state(self, state: str, attempt: int, workers: Mapping[int, str]) -> None:
        """The state of the run, or the phase of one of its workers (by rank), changed."""

    def on_report(self, metrics: Mapping[str, Any]) -> None:
        """Rank 0 reported: its metrics with ``training_iteration``, ``timestamp``, ``time_total_s`` and ``attempt``.

        Where batches were measured, also ``data_wait_share``: for how much of the time since the last report, from 0 to
        1, training has waited for them.
        """

    def on_checkpoint(self, report: int, path: str, metrics: Mapping[str, Any]) -> None:
        """A checkpoint became visible at ``path``."""

    def on_message(self, text: str, level: str) -> None:
        """Something that a person should know; ``level`` is ``"info"``, ``"warning"`` or ``"error"``."""

    def on_run_end(self, state: str, reason: str) -> None:
        """The run is over."""
