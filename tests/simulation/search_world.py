"""A whole search in one thread: simulated trials, a driver that may die between any two deeds, and a clock.

Everything that happens is drawn from one seed, so a seed that breaks a promise breaks it again in the same way.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from typing import Any

from shoal import tune
from shoal._core import commands as do
from shoal._core import search as on
from shoal._core.events import Event, PreemptionNotice, StopAsked, TimerFired
from shoal._core.experiment import Experiment, SearchSpec
from shoal._core.trials import TrialScheduler, TrialStatus
from shoal.tune.schedulers import (
    ASHAPromotionScheduler,
    ASHAScheduler,
    FIFOScheduler,
    HyperBandScheduler,
    MedianStoppingRule,
    PopulationBasedTraining,
)
from shoal.tune.search import BasicVariantGenerator, ConcurrencyLimiter
from shoal.tune.stopper import MaximumIterationStopper

SPACE = {"x": tune.uniform(0, 1)}


class DriverDied(Exception):
    """The driver is killed between two of its deeds."""


class BrokenPromise(AssertionError):
    """A promise was broken; the story tells how."""


@dataclass
class Process:
    """The run of one trial: how many reports it has made, and whether it waits for what is decided."""

    trial_id: str
    reports: int
    waits: bool = False
    stop: bool = False
    storing: list[int] = field(default_factory=list)


def schedulers(rng: random.Random) -> list[Any]:
    seed = rng.randrange(100)
    mutations = {"x": tune.uniform(0, 1)}
    time_attr = "training_iteration"
    return [
        FIFOScheduler,
        lambda: ASHAScheduler(max_t=9, grace_period=1, reduction_factor=3),
        lambda: ASHAPromotionScheduler(max_t=9, grace_period=1, reduction_factor=3),
        lambda: HyperBandScheduler(max_t=9, reduction_factor=3),
        lambda: MedianStoppingRule(time_attr=time_attr, grace_period=2, min_samples_required=2),
        lambda: MedianStoppingRule(time_attr=time_attr, grace_period=2, min_samples_required=2, hard_stop=False),
        lambda: PopulationBasedTraining(
            time_attr=time_attr, perturbation_interval=2, hyperparam_mutations=mutations, seed=seed
        ),
        lambda: PopulationBasedTraining(
            time_attr=time_attr, perturbation_interval=2, hyperparam_mutations=mutations, seed=seed, synch=True
        ),
    ]


class SearchWorld:
    """The surroundings of an experiment."""

    def __init__(self, seed: int):
        self.rng = rng = random.Random(seed)
        self.scheduler = rng.choice(schedulers(rng))
        self.count = rng.randint(1, 12)
        self.limit = rng.choice([None, 1, 2, 5])
        self.stops = rng.choice([None, 6])
        self.length = rng.randint(1, 12)
        self.checkpoints = rng.choice([0, 1, 3])  # every how many reports
        self.room = rng.choice([None, 1, 3, 8])
        self.trouble = rng.choice([0.0, 0.02, 0.1])
        self.limited = rng.random() < 0.2
        self.journal: list[Any] = []
        self.saved: dict[str, int] = {}
        self.lost: set[str] = set()
        self.made: dict[str, set[int]] = {}
        self.now = 0.0
        self.drivers = 0
        self.story: list[str] = []
        self.end: on.FinishSearch | None = None
        self.machine: Experiment
        self.processes: dict[str, Process] = {}
        self.start_driver()

    # ---- the driver -----------------------------------------------------------------------------------------------

    def start_driver(self) -> None:
        """A new driver reads the journal and goes on; nothing that ran has survived the last one."""
        while True:
            self.drivers += 1
            self.lost |= {process.trial_id for process in self.processes.values() if process.storing}
            self.processes.clear()
            self.soon: list[Event] = []
            self.timers: dict[str, float] = {}
            searcher: Any = BasicVariantGenerator(random_state=1)
            if self.limited:
                searcher = ConcurrencyLimiter(searcher, 2)
            scheduler: TrialScheduler = self.scheduler()
            searcher.set_search_properties("m", "max", SPACE, num_samples=self.count, seed=1)
            scheduler.set_search_properties("m", "max")
            spec = SearchSpec(search_id="s", metric="m", mode="max", num_samples=self.count, max_concurrent=self.limit)
            stopper = MaximumIterationStopper(self.stops) if self.stops else None
            self.machine = Experiment(spec, searcher, scheduler, stopper)
            self.machine.replay(self.journal)
            try:
                self.handle(on.RoomChanged(trials=self.room))
                self.handle(on.Begin(wall=1000.0))
                return
            except DriverDied:
                continue

    def handle(self, event: Event) -> None:
        """Let the experiment decide, and carry its commands out; the driver may die between any two of them."""
        for command in self.machine.handle(event, self.now):
            if self.rng.random() < self.trouble / 30:
                self.story.append("the driver dies")
                raise DriverDied
            self.story.append(str(command)[:150])
            getattr(self, f"do_{type(command).__name__}", lambda command: None)(command)
        while self.soon:
            self.handle(self.soon.pop(0))

    def do_PersistSearch(self, command: on.PersistSearch) -> None:
        self.journal.append(command.record)

    def do_StartTrial(self, command: on.StartTrial) -> None:
        self.promise(command.trial_id not in self.processes, f"{command.trial_id} has two processes")
        limits = [limit for limit in (self.limit, self.room) if limit is not None]
        self.promise(len(self.processes) < min(limits, default=math.inf), "more trials run than there is room for")
        trial = self.machine.table[command.trial_id]
        self.promise(not trial.finished, f"{command.trial_id} has ended and is started")
        if command.anew:
            self.saved.pop(command.trial_id, None)
        saved = self.saved.get(command.trial_id, 0)
        self.processes[command.trial_id] = Process(command.trial_id, saved)
        for n in range(trial.reports + 1, saved + 1):  # stored by the trial, and unknown to the last driver
            self.soon += [self.reported(command.trial_id, n, True), on.TrialSaved(trial_id=command.trial_id, n=n)]

    def do_Adopt(self, command: on.Adopt) -> None:
        known = command.source_id in self.saved or command.source_id in self.lost
        self.promise(known, f"{command.source_id} has no checkpoint to go on from")
        source = self.processes.get(command.source_id)
        self.promise(source is None or command.n not in source.storing, f"{command.source_id} still stores it")
        self.saved[command.trial_id] = self.machine.table[command.trial_id].reports

    def do_Decide(self, command: on.Decide) -> None:
        process = self.processes[command.trial_id]
        process.waits, process.stop = False, bool(command.stop)

    def do_StopTrial(self, command: on.StopTrial) -> None:
        if command.trial_id in self.processes:
            self.processes[command.trial_id].stop = True
            self.processes[command.trial_id].waits = False

    def do_SetTimer(self, command: do.SetTimer) -> None:
        self.timers[command.name] = command.at

    def do_FinishSearch(self, command: on.FinishSearch) -> None:
        self.promise(not self.processes, "the search ends while trials run")
        self.end = command

    # ---- what happens ---------------------------------------------------------------------------------------------

    def live(self) -> None:
        """Let things happen until the search has ended."""
        for turn in range(6000):
            if self.end is not None:
                return
            if turn > 3000:
                self.trouble = 0.0
            try:
                self.step()
            except DriverDied:
                self.start_driver()
        raise BrokenPromise(self.told("the search does not end"))

    def step(self) -> None:
        self.now += 0.01
        rng = self.rng
        unplaced = self.machine.table.unplaced
        if unplaced is not None and rng.random() < 0.8:
            self.handle(on.TrialPlaced(trial_id=unplaced))
            return
        if rng.random() < self.trouble / 100:
            raise DriverDied
        if rng.random() < self.trouble / 20:
            self.handle(on.RoomChanged(trials=rng.choice([self.room, self.room])))
        ready = [process for process in self.processes.values() if not process.waits]
        storing = [process for process in self.processes.values() if process.storing]
        if storing and (not ready or rng.random() < 0.4):
            self.store(rng.choice(storing))
            return
        if not ready:
            if self.timers:
                name = min(self.timers, key=lambda name: self.timers[name])
                self.now = max(self.now, self.timers.pop(name))
                self.handle(TimerFired(name=name))
            return
        self.work(rng.choice(ready))

    def work(self, process: Process) -> None:
        """A trial makes its next report, or ends."""
        name = process.trial_id
        if process.stop or process.reports >= self.length:
            while process.storing:
                self.store(process)
            del self.processes[name]
            self.handle(on.TrialEnded(trial_id=name, completed=not process.stop))
            return
        if self.rng.random() < self.trouble / 10:
            del self.processes[name]
            self.lost |= {name} if process.storing else set()
            self.handle(on.TrialEnded(trial_id=name, completed=False, error="bad"))
            return
        process.reports += 1
        process.waits = self.machine.decides
        saves = bool(self.checkpoints) and process.reports % self.checkpoints == 0
        if saves:
            process.storing.append(process.reports)
        self.handle(self.reported(name, process.reports, saves))

    def store(self, process: Process) -> None:
        """The oldest checkpoint that a trial is storing is there."""
        n = process.storing.pop(0)
        self.saved[process.trial_id] = n
        self.handle(on.TrialSaved(trial_id=process.trial_id, n=n))

    def reported(self, name: str, n: int, saved: bool) -> Event:
        value = math.sin(self.machine.table[name].config["x"] * 50) * n
        row = {"training_iteration": n, "time_total_s": float(n), "m": value}
        return on.TrialReported(trial_id=name, n=n, row=row, saved=saved)

    def stop(self) -> None:
        taken_back = PreemptionNotice(reason="the job is taken back", grace=60.0)
        self.handle(self.rng.choice([StopAsked(reason="Ctrl-C"), taken_back]))

    # ---- promises -------------------------------------------------------------------------------------------------

    def check_end(self) -> None:
        """What must be so when the search has ended."""
        assert self.end is not None
        self.promise(self.end.state == "FINISHED", f"it ended as {self.end}")
        trials = self.machine.table.get_trials()
        self.promise(len(trials) == self.count, f"{len(trials)} trials instead of {self.count}")
        for trial in trials:
            self.promise(trial.finished, f"{trial} has not ended")
        started = {record.trial_id for record in self.journal if isinstance(record, on.TrialStarted)}
        self.promise(started <= {trial.trial_id for trial in trials}, "a trial was lost")
        results: dict[str, int] = {}
        for record in self.journal:
            if isinstance(record, on.TrialResult):
                before = results.get(record.trial_id, 0)
                self.promise(record.n == before + 1, f"{record.trial_id} reports {record.n} after {before}")
                results[record.trial_id] = record.n
        over = [record.trial_id for record in self.journal if isinstance(record, on.TrialOver) and _final(record)]
        self.promise(len(over) == len(set(over)), "a trial ended twice")

    def promise(self, kept: bool, what: str) -> None:
        if not kept:
            raise BrokenPromise(self.told(what))

    def told(self, what: str) -> str:
        return what + "\n  " + "\n  ".join(self.story[-60:])


def _final(record: on.TrialOver) -> bool:
    return TrialStatus(record.status) in {TrialStatus.TERMINATED, TrialStatus.ERROR}
