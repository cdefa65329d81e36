"""What supervisor, hosts and workers say to each other: msgspec structs in msgpack, never a pickle.

Values that only the user's code understands (the training function, the value it returns, its exception) travel as
opaque bytes inside these structs and are rebuilt only by the process that was asked to run or to return them.
"""

from __future__ import annotations

from typing import Any

import msgspec


class Message(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag=True):
    """The root of every message."""


# ---- data inside messages -------------------------------------------------------------------------------------------


class FileEntry(msgspec.Struct, frozen=True):
    """One file of a checkpoint: its path relative to the checkpoint, size in bytes, and digest (``algorithm:hex``)."""

    path: str
    size: int
    digest: str = ""


class ErrorInfo(msgspec.Struct, frozen=True, kw_only=True):
    """An exception as text, and as a pickle where it has one. ``pickled`` is rebuilt by ``fit()`` alone."""

    type: str
    message: str
    traceback: str = ""
    pickled: bytes | None = None


class ExitInfo(msgspec.Struct, frozen=True, kw_only=True):
    """How a process ended: an exit code or a signal, its peak memory in bytes, whether the kernel ran out of memory."""

    pid: int
    code: int | None = None
    signal: int | None = None
    peak_memory: int = 0
    out_of_memory: bool = False


class Ranks(msgspec.Struct, frozen=True, kw_only=True):
    """The place of one worker in its group."""

    world_rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    node_rank: int


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Where a supervisor listens. ``token`` is the run's secret; the CURVE keys are empty on a private unix socket."""

    address: str
    token: str
    server_key: str = ""
    client_public: str = ""
    client_secret: str = ""


class Boot(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker's process is given at its start: whom to ask for its task, who it is, its scratch directory."""

    endpoint: Endpoint
    run_id: str
    attempt: int
    rank: int
    scratch: str


# ---- from a worker --------------------------------------------------------------------------------------------------


class WorkerHello(Message, frozen=True, kw_only=True):
    """The process is there and asks for its task. ``token`` shows that it belongs to this run."""

    token: str
    pid: int


class Ready(Message, frozen=True, kw_only=True):
    """The framework is set up; the user's function starts now."""


class Offer(Message, frozen=True, kw_only=True):
    """This rank's part of a gathering named ``key``; every rank gets everybody's part once the last one has come."""

    key: str
    data: bytes


class Report(Message, frozen=True, kw_only=True):
    """The ``n``-th report of this rank. ``files`` is ``None`` without a checkpoint.

    ``replicated`` says whether each rank has the whole checkpoint; ``validation`` how it is to be scored, if it is;
    ``data`` for how many seconds since the last report the function waited for batches, and used them.
    """

    n: int
    metrics: dict[str, Any]
    at: float
    files: list[FileEntry] | None = None
    name: str | None = None
    replicated: bool | None = None
    validation: dict[str, Any] | None = None
    data: tuple[float, float] | None = None


class Consult(Message, frozen=True, kw_only=True):
    """This rank is about to make its ``n``-th report, and asks beforehand whether it is to stop there."""

    n: int
    metrics: dict[str, Any]
    at: float


class Stored(Message, frozen=True, kw_only=True):
    """This rank's part of the checkpoint of report ``n`` is whole in the staging place; or why it never will be.

    ``place`` is where the user's own code has stored it, a path or a URL.
    """

    n: int
    files: list[FileEntry]
    error: str = ""
    place: str = ""


class Digests(Message, frozen=True, kw_only=True):
    """The digests of files of report ``n`` that were stored without them, so that nobody had to wait for these."""

    n: int
    files: list[FileEntry]


class Finished(Message, frozen=True, kw_only=True):
    """The function returned, or left at a stop request.

    ``informed`` says whether it had been told of a preemption; ``leftovers`` names threads that still run.
    """

    value: bytes | None = None
    stopped: bool = False
    informed: bool = False
    reports: int = 0
    leftovers: list[str] = []


class Failed(Message, frozen=True, kw_only=True):
    """The function, or the set-up before it, raised."""

    error: ErrorInfo


class Left(Message, frozen=True, kw_only=True):
    """A worker that has no process of its own is done; where there is a process, its exit says this."""


class Stacks(Message, frozen=True, kw_only=True):
    """The stack of every thread of this worker, as text."""

    text: str


class Preempted(Message, frozen=True, kw_only=True):
    """This worker was told that it will be taken away."""


class Calls(Message, frozen=True, kw_only=True):
    """How often the function has asked whether it is being preempted; its next call waits for an answer."""

    count: int


class AskCheckpoints(Message, frozen=True, kw_only=True):
    """Which checkpoints are kept? To be answered when those up to report ``n`` are committed (and ``scored``)."""

    key: str
    n: int
    scored: bool = False


class Alive(Message, frozen=True, kw_only=True):
    """Sent every few seconds: what the worker has used since the last time.

    ``cpu`` in cores, ``memory`` and ``gpu_memory`` in bytes; ``gpu_memory`` is what torch has reserved.
    """

    cpu: float = 0.0
    memory: int = 0
    gpu_memory: int = 0


FromWorker = (
    WorkerHello
    | Ready
    | Offer
    | Report
    | Consult
    | Stored
    | Digests
    | Finished
    | Failed
    | Left
    | Stacks
    | Preempted
    | Calls
    | AskCheckpoints
    | Alive
)


class Batch(msgspec.Struct, frozen=True, array_like=True):
    """Messages of one worker in the order in which they were said."""

    messages: list[FromWorker]


# ---- to a worker ----------------------------------------------------------------------------------------------------


class Setup(Message, frozen=True, kw_only=True):
    """Everything a worker needs to begin: the task (a cloudpickle), its place, where it starts from.

    ``sources`` has the text of code that is in no file, such as a notebook's cell, by its name; ``decided`` says
    whether a report returns only when it is decided what follows from it; ``config`` is the configuration where it is
    not in the task, ``folder`` the directory of the trial in its search's, where the task's storage is that of all
    trials; ``reused`` says whether the process runs other trials afterwards. A large task comes once to each host, and
    is kept there for its workers under the name ``at_host``; ``task`` is empty then.
    """

    task: bytes
    sources: dict[str, str]
    ranks: Ranks
    run_name: str
    run_path: str
    trial_id: str
    attempt: int
    checkpoint: str | None
    checkpoint_report: int
    resources: dict[str, float]
    metadata: str = "null"
    decided: bool = False
    config: bytes = b""
    folder: str = ""
    reused: bool = False
    at_host: str = ""


class Gathered(Message, frozen=True, kw_only=True):
    """Everybody's part of the gathering ``key``, by rank; or why it can never be complete."""

    key: str
    data: list[bytes]
    error: str = ""


class Store(Message, frozen=True, kw_only=True):
    """Put these files of report ``n`` into ``directory``, which is the staging place of that checkpoint."""

    n: int
    directory: str
    files: list[str]


class Kept(Message, frozen=True, kw_only=True):
    """The rank's part of report ``n`` is not lost any more, whoever dies; if it was the last, the checkpoint is not."""

    n: int


class KeptCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A committed checkpoint as a worker is told of it."""

    name: str
    metrics: dict[str, Any]
    status: str


class KeptList(Message, frozen=True, kw_only=True):
    """The kept checkpoints, the oldest first: the answer to ``AskCheckpoints``."""

    key: str
    checkpoints: list[KeptCheckpoint]


class Committed(Message, frozen=True, kw_only=True):
    """The checkpoint of report ``n`` is whole and visible at ``path``."""

    n: int
    path: str


class StopAt(Message, frozen=True, kw_only=True):
    """Leave the function at report ``n`` or the first one after it."""

    n: int


class Decided(Message, frozen=True, kw_only=True):
    """Nothing follows from report ``n``: the function goes on. Else ``StopAt`` is sent."""

    n: int


class AskCalls(Message, frozen=True, kw_only=True):
    """Answer with ``Calls``, and let the next call wait."""


class PreemptAt(Message, frozen=True, kw_only=True):
    """Tell the function of the preemption from its ``call``-th call on."""

    call: int
    deadline_ms: int
    ranks: list[int]


class Farewell(Message, frozen=True, kw_only=True):
    """All that the worker said has arrived; it may end."""


class DumpStacks(Message, frozen=True, kw_only=True):
    """Answer with ``Stacks``."""


ToWorker = (
    Setup
    | Gathered
    | Store
    | Kept
    | KeptList
    | Committed
    | StopAt
    | Decided
    | AskCalls
    | PreemptAt
    | Farewell
    | DumpStacks
)


# ---- from a host ----------------------------------------------------------------------------------------------------


class HostHello(Message, frozen=True, kw_only=True):
    """A host is there and takes orders from this supervisor.

    ``limit`` is after how many seconds of silence each side takes the other for lost; ``None`` where the death of one
    is seen by the other at once.
    """

    token: str
    hostname: str
    pid: int
    limit: float | None = None


class WorkerOutput(Message, frozen=True, kw_only=True):
    """Bytes that a worker wrote to its standard output or error."""

    run_id: str
    attempt: int
    rank: int
    data: bytes


class WorkerExited(Message, frozen=True, kw_only=True):
    """A worker's process is gone and reaped."""

    run_id: str
    attempt: int
    rank: int
    exit: ExitInfo


class Pulse(Message, frozen=True, kw_only=True):
    """The host and its workers are alive; the supervisor answers with the same."""


class NativeStacks(Message, frozen=True, kw_only=True):
    """The native stacks of a worker as text, read from outside; empty if they cannot be had."""

    run_id: str
    attempt: int
    rank: int
    text: str


class HostLeaves(Message, frozen=True, kw_only=True):
    """The host serves this supervisor no longer, as its engine wants; its silence means nothing."""


FromHost = HostHello | WorkerOutput | WorkerExited | NativeStacks | Pulse | HostLeaves


# ---- to a host ------------------------------------------------------------------------------------------------------


class StartWorker(Message, frozen=True, kw_only=True):
    """Start one worker.

    ``fork`` says whether it may be a fork of the preloaded server or needs a fresh interpreter; ``threads`` is how many
    threads its libraries may use, 0 for a fair share of the machine.
    """

    attempt: int
    rank: int
    run_id: str
    environment: dict[str, str]
    directory: str
    import_path: list[str]
    arguments: list[str]
    preload: list[str]
    fork: bool
    threads: int = 0


class KeepTask(Message, frozen=True, kw_only=True):
    """Keep a task for the workers of a run that are to be started here, as long as there are any."""

    run_id: str
    name: str
    data: bytes


class KillWorkers(Message, frozen=True, kw_only=True):
    """Send SIGKILL to these ranks of an attempt, and to what they started."""

    run_id: str
    attempt: int
    ranks: list[int]


class ReadStacks(Message, frozen=True, kw_only=True):
    """Answer with the ``NativeStacks`` of these processes, by rank."""

    run_id: str
    attempt: int
    pids: dict[int, int]


ToHost = StartWorker | KeepTask | KillWorkers | ReadStacks | Pulse
