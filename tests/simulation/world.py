"""A whole run in one thread: simulated workers, hosts, network, storage and clock, and faults at every point.

Everything that happens is drawn from one seed, so a seed that breaks a promise breaks it again in the same way.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field

from shoal._core import commands as do
from shoal._core import events as on
from shoal._core.failure import FailurePolicy, looks_like_a_consequence
from shoal._core.group import Group
from shoal._core.messages import (
    AskCalls,
    Calls,
    ErrorInfo,
    ExitInfo,
    Failed,
    Farewell,
    FileEntry,
    Finished,
    FromWorker,
    Kept,
    PreemptAt,
    Preempted,
    Ready,
    Report,
    StopAt,
    Store,
    Stored,
    WorkerHello,
)
from shoal._core.records import AnyRecord, AttemptEnded, AttemptStarted, CheckpointCommitted, CheckpointDeleted, fold
from shoal._core.retention import CheckpointPolicy
from shoal._core.run import Run
from shoal._core.scaling import GroupRequest
from shoal._core.spec import RunSpec
from shoal._core.states import RunState


class DriverDied(Exception):
    """The driver is killed between two of its deeds."""


class BrokenPromise(AssertionError):
    """A promise was broken; the story tells how."""


@dataclass
class Process:
    """A simulated worker: what it knows, what it has to do, and what it has said that has not arrived yet."""

    attempt: int
    rank: int
    alive: bool = True
    set_up: bool = False
    reports: int = 0
    steps: int = 0
    stop_at: int | None = None
    storing: list[str] = field(default_factory=list)
    stored: list[str] = field(default_factory=list)
    store_report: int = 0
    staging: str = ""
    waits: bool = False
    done: bool = False
    farewell: bool = False
    preempted: bool = False
    said: deque[FromWorker] = field(default_factory=deque)
    heard: deque[object] = field(default_factory=deque)


class World:
    """The surroundings of a run."""

    def __init__(self, seed: int):
        self.rng = random.Random(seed)
        rng = self.rng
        low = rng.randint(1, 3)
        high = low if rng.random() < 0.5 else low + rng.randint(1, 3)
        self.spec = RunSpec(
            request=GroupRequest(min_workers=low, max_workers=high, resources={"slot": 1.0}),
            failure=FailurePolicy(
                max_failures=rng.choice([0, 1, 5, -1]),
                reset_on_progress=rng.random() < 0.3,
                progress_timeout=rng.choice([None, 30.0]),
                preemption_grace=rng.choice([0.0, 60.0]),
                max_preemptions=rng.choice([-1, 1]),
            ),
            checkpoint=CheckpointPolicy(num_to_keep=rng.choice([None, 1, 2]), score_attribute=rng.choice([None, "x"])),
            resize_interval=rng.choice([0.0, 60.0]),
            renames=rng.random() < 0.5,
        )
        self.replicated = rng.choice([True, False, None])
        self.kept: dict[tuple[int, int], set[int]] = {}
        self.spoiled: set[tuple[int, int]] = set()
        self.capacity = rng.randint(low, high + 1)
        self.length = rng.randint(1, 12)
        self.trouble = rng.choice([0.0, 0.02, 0.1])
        self.now = 0.0
        self.wall = 1000.0
        self.journal: list[AnyRecord] = []
        self.staged: dict[str, dict[str, str]] = {}
        self.visible: dict[str, dict[str, str]] = {}
        self.damaged: set[str] = set()
        self.processes: list[Process] = []
        self.inbox: deque[on.Event] = deque()
        self.exits: list[on.Event] = []
        self.timers: dict[str, float] = {}
        self.lease = 0
        self.ticket = 0
        self.hosts = 0
        self.dead_hosts: set[str] = set()
        self.story: deque[str] = deque(maxlen=60)
        self.causes: dict[int, set[int]] = {}
        self.drivers = 0
        self.end: do.Finish | None = None
        self.run: Run
        self.start_driver()

    # ---- the driver -----------------------------------------------------------------------------------------------

    def start_driver(self) -> None:
        """A new driver reads the journal and goes on."""
        self.drivers += 1
        self.timers.clear()
        self.inbox.clear()
        self.exits.clear()
        self.lease = 0
        for process in self.processes:  # nothing survives the driver
            process.alive = False
        self.run = Run(self.spec, fold(self.journal))
        self.story.append(f"driver {self.drivers} starts at report {self.newest_sound()}")
        self.handle(on.Begin(wall=self.wall))

    def handle(self, event: on.Event) -> None:
        """Let the run decide, and carry its commands out; the driver may be killed between any two of them."""
        for command in self.run.handle(event, self.now):
            if self.rng.random() < self.trouble / 40:
                raise DriverDied
            getattr(self, f"do_{type(command).__name__}", self.ignore)(command)

    def ignore(self, command: do.Command) -> None:
        """Nothing that the world has to do with."""

    def do_Acquire(self, command: do.Acquire) -> None:
        self.lease = 0
        self.dead_hosts.clear()
        self.ticket = command.ticket
        size = min(self.capacity, self.spec.request.max_workers)
        if size >= min(command.at_least, max(self.capacity, self.spec.request.min_workers)):
            self.lease = size
            first = self.rng.randint(1, size)
            self.hosts += 1
            slots = [on.HostSlots(host=f"a{self.hosts}", hostname="a", count=first)]
            if first < size:
                slots.append(on.HostSlots(host=f"b{self.hosts}", hostname="b", count=size - first))
            self.inbox.append(on.Acquired(slots=tuple(slots), ticket=command.ticket))

    def do_StartWorkers(self, command: do.StartWorkers) -> None:
        living = {p.attempt for p in self.processes if p.alive}
        self.promise(not living, f"attempt {command.attempt} starts while {living} live")
        start = self.run.history.attempts[-1].checkpoint
        self.promise(start == self.newest_sound(), f"it starts at {start}, not at {self.newest_sound()}")
        self.processes = [Process(command.attempt, w.ranks.world_rank) for w in command.workers]
        for process, placement in zip(self.processes, command.workers, strict=True):
            process.alive = placement.host not in self.dead_hosts
            if process.alive:
                process.said.append(WorkerHello(token="", pid=1))
            else:
                self.causes.setdefault(command.attempt, set()).add(process.rank)

    def do_SetUp(self, command: do.SetUp) -> None:
        for process in self.of(command.attempt, command.ranks.world_rank):
            process.heard.append(command)

    def do_Tell(self, command: do.Tell) -> None:
        if isinstance(command.message, Kept):
            self.check_kept(command.attempt, command.rank, command.message.n)
        for process in self.of(command.attempt, command.rank):
            process.heard.append(command.message)

    def do_Kill(self, command: do.Kill) -> None:
        for rank in command.ranks:
            for process in self.of(command.attempt, rank):
                self.die(process, cause=False)

    def do_Persist(self, command: do.Persist) -> None:
        self.journal.append(command.record)
        self.story.append(f"{self.now:.2f} journal: {command.record}"[:200])

    def do_Commit(self, command: do.Commit) -> None:
        self.commit(command.staging, command.name)
        self.inbox.append(on.CommitDone(n=command.n))

    def commit(self, staging: str, name: str) -> None:
        self.visible[name] = self.staged.pop(staging, {})
        self.damaged.discard(name)

    def do_Inspect(self, command: do.Inspect) -> None:
        checkpoint = command.checkpoint
        files = self.staged.get(checkpoint.staging, {})
        if files and {f.path for f in checkpoint.files} <= set(files):
            self.commit(checkpoint.staging, checkpoint.name)
        damage = "" if self.sound(checkpoint.name) else "damaged"
        self.inbox.append(on.Inspected(n=checkpoint.n, damage=damage))

    def do_Discard(self, command: do.Discard) -> None:
        for name in list(self.staged):
            if name not in command.keep and (not self.spec.renames or name.startswith(f".staging-{command.attempt}-")):
                del self.staged[name]

    def do_DeleteCheckpoint(self, command: do.DeleteCheckpoint) -> None:
        self.visible.pop(command.name, None)

    def do_SetTimer(self, command: do.SetTimer) -> None:
        self.timers[command.name] = command.at

    def do_Finish(self, command: do.Finish) -> None:
        self.end = command

    # ---- what happens ---------------------------------------------------------------------------------------------

    def live(self) -> None:
        """Let things happen until the run has ended; after a while without further trouble, so that it can."""
        for turn in range(3000):
            if self.end is not None:
                return
            if turn > 600:
                self.trouble = 0.0
                self.capacity = max(self.capacity, self.spec.request.min_workers)
            try:
                self.step()
                self.check()
            except DriverDied:
                self.story.append(f"{self.now:.2f} the driver dies")
                self.start_driver_again()
        raise BrokenPromise(self.told("the run does not end"))

    def start_driver_again(self) -> None:
        while True:
            try:
                self.start_driver()
            except DriverDied:
                continue
            return

    def step(self) -> None:
        """Let one thing happen."""
        rng = self.rng
        if rng.random() < self.trouble:
            self.make_trouble()
            return
        choices = []
        if self.inbox:
            choices.append(self.take_from_inbox)
        if self.exits:
            choices.append(self.take_exit)
        speaking = [p for p in self.processes if p.said]
        if speaking:
            choices += [lambda: self.deliver(rng.choice(speaking))] * 3
        working = [p for p in self.processes if p.alive and not p.waits]
        if working:
            choices += [lambda: self.work(rng.choice(working))] * 3
        if not choices or rng.random() < 0.05:
            self.let_time_pass(hurry=not choices)
        else:
            rng.choice(choices)()

    def make_trouble(self) -> None:
        rng = self.rng
        kind = rng.random()
        living = [p for p in self.processes if p.alive]
        if kind < 0.35 and living:
            self.die(rng.choice(living), cause=True)
        elif kind < 0.5 and living:
            process = rng.choice(living)
            if process.set_up and not process.done:
                self.fail(process)
        elif kind < 0.6:
            self.capacity = rng.randint(0, self.spec.request.max_workers + 1)
            if self.lease:
                self.inbox.append(
                    on.CapacityChanged(workers=min(self.capacity, self.spec.request.max_workers), ticket=self.ticket)
                )
        elif kind < 0.68 and living:
            self.lose_host()
        elif kind < 0.76 and self.visible and not any(isinstance(e, on.Inspected) for e in self.inbox):
            self.damaged.add(rng.choice(sorted(self.visible)))
        elif kind < 0.79 and living and self.run.group:
            self.take_away(living, self.run.group)
        elif kind < 0.8:
            self.inbox.append(on.StopAsked(reason="stop", kill=rng.random() < 0.3))
        elif kind < 0.82:
            self.inbox.append(on.StorageFailed(reason="full"))
        elif kind < 0.9:
            self.now += rng.choice([1.0, 40.0, 4000.0])  # the clock jumps, or the driver was suspended
        else:
            raise DriverDied

    def take_away(self, living: list[Process], group: Group) -> None:
        """A process is told that it will be taken away, or the engine is told so of a machine."""
        if self.rng.random() < 0.7:
            self.rng.choice(living).said.append(Preempted())
            return
        host = self.rng.choice([worker.placement.host for worker in group.workers])
        self.inbox.append(on.PreemptionNotice(reason="wanted back", grace=self.rng.choice([5.0, 60.0]), host=host))

    def lose_host(self) -> None:
        group = self.run.group
        if group is None or self.run.state.final:
            return
        host = self.rng.choice([w.placement.host for w in group.workers])
        for worker in group.workers:
            if worker.placement.host == host:
                self.causes.setdefault(group.attempt, set()).add(worker.rank)
                for process in self.of(group.attempt, worker.rank):
                    process.alive = False
        self.dead_hosts.add(host)
        self.inbox.append(on.HostLost(host=host, reason="cable"))

    def take_from_inbox(self) -> None:
        self.handle(self.inbox.popleft())

    def take_exit(self) -> None:
        self.handle(self.exits.pop(self.rng.randrange(len(self.exits))))

    def deliver(self, process: Process) -> None:
        """What a worker said arrives, in its order; now and then twice, as after a reconnect."""
        message = process.said.popleft()
        event = on.Heard(attempt=process.attempt, rank=process.rank, message=message)
        self.handle(event)
        if self.rng.random() < self.trouble:
            self.handle(event)

    def let_time_pass(self, hurry: bool) -> None:
        name, at = min(self.timers.items(), key=lambda t: t[1], default=("", self.now + 1))
        if at > self.now and not hurry:
            self.now += self.rng.choice([0.001, 0.01, 0.1])
            self.wall += 0.1
            return
        self.now = max(self.now, at)
        if self.timers.pop(name, None) is not None:
            self.handle(on.TimerFired(name=name))
        elif self.run.state in (RunState.PENDING, RunState.RESTARTING, RunState.RESIZING) and not self.lease:
            self.capacity = self.spec.request.max_workers  # room comes in the end
            self.do_Acquire(do.Acquire(at_least=1, ticket=self.ticket))

    # ---- workers --------------------------------------------------------------------------------------------------

    def work(self, process: Process) -> None:
        """A worker does the next thing."""
        if process.heard:
            self.hear(process, process.heard.popleft())
        elif process.farewell:
            process.alive = False
            self.exits.append(self.exited(process, ExitInfo(pid=1, code=0)))
        elif process.storing:
            self.write_one_file(process)
        elif process.set_up and not process.done and not process.store_report:
            self.report(process)

    def hear(self, process: Process, message: object) -> None:
        match message:
            case do.SetUp():
                process.set_up = True
                process.reports = message.checkpoint_report
                process.said.append(Ready())
            case StopAt():
                process.stop_at = message.n
            case Farewell():
                process.farewell = True
            case AskCalls():
                process.said.append(Calls(count=process.reports))
            case PreemptAt():
                process.preempted = True
            case Store() if process.store_report == message.n:
                process.staging, process.storing = message.directory, list(message.files)
                process.stored = []
                if not process.storing:
                    self.finish_storing(process)
            case Kept() if process.store_report == message.n:
                process.store_report = 0
                self.leave_if_asked(process)

    def write_one_file(self, process: Process) -> None:
        if self.rng.random() < self.trouble / 10:  # the disk is full, or the network gone
            self.spoiled.add((process.attempt, process.store_report))
            process.said.append(Stored(n=process.store_report, files=[], error="full"))
            self.fail(process)
            return
        name = process.storing.pop()
        self.staged.setdefault(process.staging, {})[name] = f"{process.attempt}:{process.store_report}"
        process.stored.append(name)
        if not process.storing:
            self.finish_storing(process)

    def finish_storing(self, process: Process) -> None:
        files = [FileEntry(path=name, size=1) for name in process.stored]
        process.said.append(Stored(n=process.store_report, files=files))

    def report(self, process: Process) -> None:
        if process.reports >= self.length:
            process.done = True
            process.said.append(Finished())
            return
        if process.preempted:
            process.done = True
            process.said.append(Finished(informed=True))
            return
        process.reports += 1
        files = None
        if process.reports % 2 == 0:
            names = ("model",) if self.replicated else ("model", f"rank{process.rank}")
            files = [FileEntry(path=name, size=1) for name in names]
            process.store_report = process.reports
        metrics = {"x": self.rng.choice([0.1, 0.5, float("nan")])}
        process.said.append(
            Report(n=process.reports, metrics=metrics, at=self.wall, files=files, replicated=files and self.replicated)
        )
        if files is None:
            self.leave_if_asked(process)

    def leave_if_asked(self, process: Process) -> None:
        if process.stop_at is not None and process.reports >= process.stop_at and not process.done:
            process.done = True
            process.said.append(Finished(stopped=True))

    def fail(self, process: Process) -> None:
        process.done = True
        process.store_report, process.storing = 0, []
        process.said.append(Failed(error=ErrorInfo(type="ValueError", message=self.rng.choice(["bad", "worse"]))))
        self.causes.setdefault(process.attempt, set()).add(process.rank)

    def die(self, process: Process, *, cause: bool) -> None:
        if not process.alive:
            return
        process.alive = False
        for _ in range(self.rng.randint(0, len(process.said))):
            process.said.pop()  # what had not left the process yet
        if cause:
            self.causes.setdefault(process.attempt, set()).add(process.rank)
        self.exits.append(self.exited(process, ExitInfo(pid=1, signal=9)))

    def exited(self, process: Process, info: ExitInfo) -> on.Exited:
        return on.Exited(attempt=process.attempt, rank=process.rank, exit=info)

    def of(self, attempt: int, rank: int) -> list[Process]:
        return [p for p in self.processes if p.attempt == attempt and p.rank == rank and p.alive]

    # ---- promises -------------------------------------------------------------------------------------------------

    def sound(self, name: str) -> bool:
        return name in self.visible and name not in self.damaged

    def newest_sound(self) -> int:
        """Return the report of the newest checkpoint that a reader of journal and storage would find sound."""
        history = fold(self.journal)
        found = [c.n for c in history.checkpoints if c.staging in self.staged or self.sound(c.name)]
        return max(found, default=0)

    def check(self) -> None:
        """What must be so at any time."""
        history = fold(self.journal)
        for checkpoint in history.checkpoints:
            files = self.staged.get(checkpoint.staging, self.visible.get(checkpoint.name))
            if not self.spec.renames and checkpoint.name in self.visible:
                files = self.visible[checkpoint.name]
            pending = any(isinstance(e, on.CommitDone) and e.n == checkpoint.n for e in self.inbox)
            if files is None:
                self.promise(checkpoint.name in self.damaged or pending, f"{checkpoint.name} is lost")
                continue
            names = {f.path for f in checkpoint.files}
            self.promise(set(files) == names, f"{checkpoint.name} has {set(files)} instead of {names}")
            stamps = set(files.values())
            self.promise(len(stamps) <= 1, f"{checkpoint.name} has parts of different reports or attempts: {stamps}")
        living = {p.attempt for p in self.processes if p.alive}
        self.promise(len(living) <= 1, f"two attempts live: {living}")

    def check_kept(self, attempt: int, rank: int, n: int) -> None:
        """A checkpoint is in the journal before the last report returns that has a part of it."""
        ranks = self.kept.setdefault((attempt, n), set())
        ranks.add(rank)
        if len(ranks) == self.run.history.attempts[-1].world_size and (attempt, n) not in self.spoiled:
            committed = {(r.attempt, r.n) for r in self.journal if isinstance(r, CheckpointCommitted)}
            self.promise((attempt, n) in committed, f"every report {n} has returned, and nothing is committed")

    def check_end(self) -> None:
        """What must be so when the run has ended."""
        self.promise(not any(p.alive for p in self.processes), "workers live on after the end")
        for record in self.journal:
            if isinstance(record, AttemptEnded) and record.failures:
                self.check_cause(record)
        committed = [r.n for r in self.journal if isinstance(r, CheckpointCommitted)]
        deleted = [r.n for r in self.journal if isinstance(r, CheckpointDeleted)]
        if committed:
            newest = max(committed)
            self.promise(newest not in deleted[-1:] or newest in committed[-1:], "retention deleted the newest")
        numbers = [r.attempt for r in self.journal if isinstance(r, AttemptStarted)]
        self.promise(numbers == sorted(set(numbers)), f"attempt numbers repeat: {numbers}")

    def check_cause(self, record: AttemptEnded) -> None:
        root = record.failures[0]
        causes = self.causes.get(record.attempt, set())
        expected = root.lost.startswith("hung") or root.preempted
        self.promise(
            expected or root.rank in causes,
            f"rank {root.rank} is told to be the cause, but it was one of {causes}: {root}",
        )
        self.promise(not looks_like_a_consequence(root), f"the cause is a consequence: {root}")

    def promise(self, kept: bool, what: str) -> None:
        if not kept:
            raise BrokenPromise(self.told(what))

    def told(self, what: str) -> str:
        return what + "\n  " + "\n  ".join(self.story)
