"""What the user's function can ask and say while it runs in a worker: the one session of the process."""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import msgspec

from shoal._core.errors import OutsideWorkerError, ShoalError, StorageError
from shoal._core.messages import (
    AskCalls,
    AskCheckpoints,
    Calls,
    Committed,
    Consult,
    Decided,
    DumpStacks,
    Farewell,
    FromWorker,
    Gathered,
    Kept,
    KeptCheckpoint,
    KeptList,
    Offer,
    PreemptAt,
    Preempted,
    Ranks,
    Report,
    Setup,
    Stacks,
    StopAt,
    Store,
    ToWorker,
)
from shoal._worker import files
from shoal._worker.data_wait import DataWait
from shoal._worker.decisions import Decisions
from shoal._worker.plain import plain
from shoal._worker.preemption import PreemptionCalls
from shoal._worker.remote import Remote, within
from shoal._worker.task import Saved, StopTraining, Task
from shoal._worker.uploader import Part, Uploader

DECISION_PATIENCE = 5.0  # seconds that ranks other than 0 wait for a decision: rank 0 may report less often than they


class Speaker(Protocol):
    """What a session says things to: the link, or a list in a test."""

    def say(self, message: FromWorker, urgent: bool = False) -> None:
        """Send a message to the supervisor, and (``urgent``) do not wait for others to go with it."""
        ...


class Session:
    """The place of one worker in its run, and its conversation with the supervisor.

    Methods may be called from any thread of the worker, but not from its child processes.
    """

    def __init__(self) -> None:
        self.scratch_path = ""
        self.setup: Setup | None = None
        self.arrived = threading.Event()
        self.farewell = threading.Event()
        self.following: Setup | None = None
        self._handed_on: list[ToWorker] = []
        self.reports = 0
        self.shards: dict[str, Any] = {}
        self.data_wait = DataWait()
        self.last_metrics: dict[str, Any] = {}
        self._speaker: Speaker | None = None
        self._pid = 0
        self._lock = threading.Lock()
        self._decisions = Decisions()
        self._checkpoint: str | None = None
        self._task: Task | None = None
        self._preemption = PreemptionCalls()
        self._uploader = Uploader(self._checkpoint_root, self._say)
        self._own_count = 0
        self._own_directories: set[Path] = set()
        self._collectives = 0
        self._gathered: dict[str, queue.SimpleQueue[Gathered]] = {}
        self._gather_lock = threading.Lock()
        self._asked: dict[str, queue.SimpleQueue[KeptList]] = {}
        self._handover = threading.Lock()
        self._successor: Session | None = None
        self._listeners: dict[type[ToWorker], Callable[[Any], None]] = {
            Setup: self._set_up,
            KeptList: self._kept_list,
            Gathered: lambda message: self._answer(message.key).put(message),
            Store: self._uploader.given_out,
            Kept: lambda message: self._uploader.kept(message.n),
            Committed: self._committed,
            StopAt: lambda message: self._decisions.stop(message.n),
            Decided: lambda message: self._decisions.go_on(message.n),
            AskCalls: lambda message: self._say(Calls(count=self._preemption.freeze())),
            PreemptAt: self._preemption.agreed,
            Farewell: lambda message: self.farewell.set(),
            DumpStacks: lambda message: self._say(Stacks(text=stacks())),
        }

    # ---- what a framework and the user's function see ---------------------------------------------------------------

    @property
    def scratch(self) -> str:
        """A directory of this worker alone, made when it is asked for."""
        os.makedirs(self.scratch_path, exist_ok=True)
        return self.scratch_path

    @property
    def task(self) -> Setup:
        """What this worker was asked to do."""
        if self.setup is None:
            raise AssertionError("the session has no task yet")
        return self.setup

    @property
    def ranks(self) -> Ranks:
        """The place of this worker in its group."""
        return self.task.ranks

    @property
    def address(self) -> str:
        """An address of this machine that the other workers reach."""
        return os.environ.get("SHOAL_HOST_ADDRESS", "127.0.0.1")

    @property
    def checkpoint(self) -> Path | Remote | None:
        """Where the newest committed checkpoint lies."""
        if self._checkpoint is None:
            return None
        start = self.work.start_checkpoint
        if start is not None and self._checkpoint == str(start):
            return start
        return self.where(self._checkpoint)

    def where(self, checkpoint: str) -> Path | Remote:
        """Return where a checkpoint of this run lies."""
        return within(self._checkpoint_root(), checkpoint)

    @property
    def place(self) -> Path | Remote:
        """The directory of the run."""
        storage = self.work.storage
        if storage is None:
            return Path(self.task.run_path)
        return storage / self.task.folder if self.task.folder else storage

    @property
    def work(self) -> Task:
        """What the task holds that only this worker's own code can read."""
        if self._task is None:
            raise AssertionError("the session's task was not opened yet")
        return self._task

    def open(self, task: Task) -> None:
        """Take the task as the objects themselves."""
        self._task = task

    @property
    def metadata(self) -> dict[str, Any]:
        """The trainer's ``metadata``."""
        return dict(json.loads(self.task.metadata) or {})

    def report(self, metrics: Any, saved: Saved | None = None) -> None:
        """Send metrics, and store this rank's part of a checkpoint, before returning or (not ``wait``) meanwhile."""
        if self._pid != os.getpid():
            raise OutsideWorkerError("report() was called in a child process of a worker; call it in the worker itself")
        values = plain(metrics)
        with self._lock:
            self._uploader.raise_earlier()
            n = self.reports + 1
            report = Report(n=n, metrics=values, at=time.time(), data=self.data_wait.since_last())
            part = None
            if saved is not None:
                part, report = self._part(saved, report)
                self._uploader.expect(part)
            self._say(report, urgent=self.task.decided)
            self.reports, self.last_metrics = n, values
            if part is not None and saved is not None and saved.wait:
                self._wait_until_kept(part)
            if self.task.decided:
                self._decisions.wait_for(n, self._patience)
            stop_at = self._decisions.stop_at
        if stop_at is not None and n >= stop_at:
            raise StopTraining

    def consult(self, metrics: Any) -> bool:
        """Ask whether the function is to stop at the report that it is about to make of these metrics."""
        if not self.task.decided:
            return False
        n = self.reports + 1
        self._say(Consult(n=n, metrics=plain(metrics), at=time.time()), urgent=True)
        return self._decisions.wait_for(n, self._patience)

    @property
    def _patience(self) -> float | None:
        """How long a report waits for a decision, which follows from what rank 0 reports, in seconds."""
        return None if self.ranks.world_rank == 0 else DECISION_PATIENCE

    def _part(self, saved: Saved, report: Report) -> tuple[Part, Report]:
        """Return what is to be stored, and the report that says so."""
        own = saved.directory in self._own_directories
        if saved.directory is not None:
            self._own_directories.discard(saved.directory)
        part = Part(report.n, saved.directory, own, saved.delete_source, saved.store)
        return part, msgspec.structs.replace(
            report,
            files=[] if saved.directory is None or saved.store is not None else files.listing(saved.directory),
            name=saved.name,
            replicated=saved.replicated,
            validation=saved.validation,
        )

    def own_directory(self) -> Path:
        """Make a directory in the place where checkpoints are staged, whose files are moved instead of copied."""
        with self._gather_lock:
            self._own_count += 1
            number = self._own_count
        root = self._checkpoint_root()
        if isinstance(root, Remote):  # files are made on this machine's disk, from where they are uploaded
            root = Path(self.scratch)
        directory = root / f".staging-{self.task.attempt}-own-{self.ranks.world_rank}-{number}"
        os.makedirs(self.scratch, exist_ok=True)
        files.stage(directory)
        self._own_directories.add(directory)
        return directory

    def kept_checkpoints(self, scored: bool, timeout_s: float | None) -> list[KeptCheckpoint]:
        """Return the kept checkpoints, once all ranks' reports up to this rank's last one are settled.

        Raises
        ------
        TimeoutError
            If that takes longer than ``timeout_s``.
        """
        key = self.next_collective("checkpoints")
        answer: queue.SimpleQueue[KeptList] = queue.SimpleQueue()
        self._asked[key] = answer
        self._say(AskCheckpoints(key=key, n=self.reports, scored=scored))
        try:
            return answer.get(timeout=timeout_s).checkpoints
        except queue.Empty:
            raise TimeoutError(
                f"the checkpoints up to report {self.reports} were not settled within {timeout_s} s"
            ) from None
        finally:
            del self._asked[key]

    def finish_uploads(self) -> None:
        """Wait until every part of a checkpoint is stored; raise what went wrong with one."""
        self._uploader.finish()

    def preemption(self) -> PreemptAt | None:
        """Return what the supervisor says of a preemption; the n-th call answers the same on every rank."""
        return self._preemption.call()

    @property
    def informed(self) -> bool:
        """Whether the function was told of a preemption."""
        return self._preemption.informed

    def preempted(self) -> None:
        """This worker was told that it will be taken away. Called in the link's thread."""
        self._say(Preempted())

    def gather(self, key: str, data: bytes, timeout_s: float | None = None) -> list[bytes]:
        """Give ``data`` to all ranks and return everybody's, by rank. Every rank has to call it with the same key."""
        answer = self._answer(key)
        self._say(Offer(key=key, data=data))
        try:
            gathered = answer.get(timeout=timeout_s)
        except queue.Empty:
            raise TimeoutError(f"not every rank came to {key!r} within {timeout_s} s") from None
        finally:
            with self._gather_lock:
                self._gathered.pop(key, None)
        if gathered.error:
            raise ShoalError(gathered.error)
        return gathered.data

    def next_collective(self, kind: str = "collective") -> str:
        """Return a key for a gathering that all ranks come to in the same order."""
        with self._gather_lock:
            self._collectives += 1
            return f"{kind} {self._collectives}"

    # ---- the other direction: called in the link's thread -----------------------------------------------------------

    def receive(self, message: ToWorker) -> None:
        """Take a message of the supervisor."""
        with self._handover:
            if self._successor is not None:
                self._successor.receive(message)
            elif self.following is not None:
                self._handed_on.append(message)
            else:
                self._listeners[type(message)](message)

    def hand_over(self, successor: Session) -> None:
        """Let the session of the trial that this process runs next hear what is meant for it."""
        with self._handover:
            self._successor = successor
            for message in self._handed_on:
                successor.receive(message)

    def _set_up(self, message: Setup) -> None:
        if self.setup is not None:  # this process runs another trial when this one is done
            self.following = message
            self._handed_on.append(message)
            self.farewell.set()
            return
        self.setup = message
        self.reports = message.checkpoint_report
        self._checkpoint = message.checkpoint
        self.arrived.set()

    def _kept_list(self, message: KeptList) -> None:
        if message.key in self._asked:
            self._asked[message.key].put(message)

    def _committed(self, message: Committed) -> None:
        self._checkpoint = message.path

    def release(self) -> None:
        """Let nobody wait any longer for a supervisor that is gone."""
        self._uploader.abandon()
        self._decisions.release()
        self.farewell.set()
        self.arrived.set()

    def begin(self, scratch: str, speaker: Speaker) -> None:
        """Belong to this process: with a directory for its files, and with whom it talks to."""
        self.scratch_path, self._speaker, self._pid = scratch, speaker, os.getpid()

    # ---- inside -----------------------------------------------------------------------------------------------------

    def _say(self, message: FromWorker, urgent: bool = False) -> None:
        if self._speaker is None:
            raise AssertionError("the session has not begun")
        self._speaker.say(message, urgent)

    def _answer(self, key: str) -> queue.SimpleQueue[Gathered]:
        with self._gather_lock:
            return self._gathered.setdefault(key, queue.SimpleQueue())

    def _checkpoint_root(self) -> Path | Remote:
        return self.place / "checkpoints"

    def _wait_until_kept(self, part: Part) -> None:
        try:
            part.kept.result()
        except StorageError:
            self._uploader.raise_earlier()
            raise


def stacks() -> str:
    """Return the Python stack of every thread: of the main one, which trains, first, and of shoal's own last."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    frames = [(str(names.get(ident, ident)), frame) for ident, frame in sys._current_frames().items()]
    frames.sort(key=lambda one: (one[0] != "MainThread", one[0].startswith("shoal-"), one[0]))
    return "\n".join(f"Thread {name}:\n" + "".join(traceback.format_stack(frame)) for name, frame in frames)


_session: Session | None = None


def install(session: Session | None) -> None:
    """Make this the session of the process."""
    global _session
    _session = session


def current(what: str) -> Session:
    """Return the session of this process; ``what`` was called and only works in a worker.

    Raises
    ------
    OutsideWorkerError
        If this process is not a worker.
    """
    if _session is None:
        raise OutsideWorkerError(
            f"{what} works only inside the function that a trainer runs on its workers; here no worker is running"
        )
    return _session


def active() -> bool:
    """Whether this process is a worker."""
    return _session is not None
