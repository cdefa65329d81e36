"""An experiment without machines: trials report and end when a test says so, or by a simulated function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shoal import tune
from shoal._core import commands as do
from shoal._core import search as on
from shoal._core.events import Event
from shoal._core.experiment import Experiment, SearchSpec
from shoal._core.trials import Searcher, Stopper, Trial, TrialScheduler, TrialStatus
from shoal.tune.schedulers import FIFOScheduler
from shoal.tune.search import BasicVariantGenerator

SPACE = {"x": tune.uniform(0, 1)}


class Search:
    """An experiment, what it wanted, and what its journal has."""

    def __init__(
        self,
        scheduler: TrialScheduler | None = None,
        *,
        searcher: Searcher | None = None,
        stopper: Stopper | None = None,
        space: dict[str, Any] | None = None,
        records: list[Any] | None = None,
        resumption: on.Resumption | None = None,
        **spec: Any,
    ):
        spec = {"search_id": "s", "metric": "m", "mode": "max", "num_samples": 4, **spec}
        searcher = searcher or BasicVariantGenerator(random_state=1)
        scheduler = scheduler or FIFOScheduler()
        given = {key: spec[key] for key in ("metric", "mode")}
        searcher.set_search_properties(**given, config=space or SPACE, num_samples=spec["num_samples"], seed=1)
        scheduler.set_search_properties(**given)
        self.machine = Experiment(SearchSpec(**spec), searcher, scheduler, stopper)
        self.journal: list[Any] = list(records or [])
        self.commands: list[do.Command] = []
        self.running: dict[str, int] = {}
        self.decided: dict[tuple[str, int], str] = {}
        self.now = 0.0
        self.machine.replay(self.journal)
        self.see(on.Begin(wall=1000.0, resumption=resumption or on.Resumption()))

    def see(self, event: Event) -> None:
        self.now += 0.01
        for command in self.machine.handle(event, self.now):
            self.commands.append(command)
            match command:
                case on.PersistSearch():
                    self.journal.append(command.record)
                case on.StartTrial():
                    assert command.trial_id not in self.running, "a trial is started that runs"
                    self.running[command.trial_id] = 0 if command.anew else self.trial(command.trial_id).reports
                    self.see(on.TrialPlaced(trial_id=command.trial_id))
                case on.Decide():
                    self.decided[command.trial_id, command.n] = command.stop

    def trial(self, trial_id: str | int) -> Trial:
        return self.machine.table[f"s_{trial_id:05d}" if isinstance(trial_id, int) else trial_id]

    def report(self, number: int, value: float | None, saved: bool = False, **more: Any) -> str:
        """Return why it is to stop, if it is."""
        trial_id = f"s_{number:05d}"
        self.running[trial_id] += 1
        n = self.running[trial_id]
        row = {"training_iteration": n, "time_total_s": float(n), "m": value, **more}
        self.see(on.TrialReported(trial_id=trial_id, n=n, row=row, saved=saved))
        return self.decided.get((trial_id, n), "")

    def ends(self, number: int, completed: bool = True, error: str = "") -> None:
        del self.running[f"s_{number:05d}"]
        self.see(on.TrialEnded(trial_id=f"s_{number:05d}", completed=completed, error=error))

    def all(self, kind: type) -> list[Any]:
        return [command for command in self.commands if isinstance(command, kind)]

    def live(self, value: Callable[[Trial, int], float], length: int = 10, saved: bool = True) -> None:
        """Let every trial report until its end or the decision to stop, one after the other, in turn."""
        while not self.machine.over:
            trial_id, reports = next(iter(self.running.items()))
            trial = self.trial(trial_id)
            number = int(trial_id[2:])
            if reports >= length:
                self.ends(number)
            elif self.report(number, value(trial, reports + 1), saved):
                self.ends(number, completed=False)
            else:
                self.running[trial_id] = self.running.pop(trial_id)  # the next one's turn

    @property
    def statuses(self) -> list[TrialStatus]:
        return [trial.status for trial in self.machine.table.get_trials()]

    @property
    def end(self) -> on.FinishSearch:
        return self.all(on.FinishSearch)[0]
