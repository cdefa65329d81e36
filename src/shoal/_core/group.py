"""The workers of one attempt: how far each has come, what ended it, what they gather from each other."""

from __future__ import annotations

import enum
import math
from collections import Counter
from collections.abc import Iterable

from shoal._core.assembly import Assembly
from shoal._core.commands import Placement
from shoal._core.failure import Failure, looks_like_a_consequence
from shoal._core.messages import Alive, ErrorInfo, ExitInfo, Gathered, Offer


class Phase(enum.StrEnum):
    """How far a worker has come."""

    STARTING = "starting"
    SETTING_UP = "setting up"
    TRAINING = "training"
    FINISHED = "finished"
    FAILED = "failed"


class Tally:
    """How many workers of a group are in each phase, and gone: thousands of them are not counted each time."""

    def __init__(self) -> None:
        self.phases: Counter[Phase] = Counter()
        self.gone = 0


class Worker:
    """One rank of an attempt. ``gone`` is true once its process is reaped; ``pid`` is 0 until it has said hello."""

    def __init__(self, placement: Placement, tally: Tally):
        self.placement = placement
        self.rank = placement.ranks.world_rank
        self.pid = 0
        self._tally = tally
        self._phase = Phase.STARTING
        self._gone = False
        tally.phases[Phase.STARTING] += 1
        self.killed = False
        self.stopped = False
        self.reported_at: float | None = None
        self.interval = math.inf
        self.heard_at = 0.0
        self.usage: Alive | None = None

    @property
    def phase(self) -> Phase:
        """How far it has come."""
        return self._phase

    @phase.setter
    def phase(self, phase: Phase) -> None:
        self._tally.phases[self._phase] -= 1
        self._tally.phases[phase] += 1
        self._phase = phase

    @property
    def gone(self) -> bool:
        """Whether its process is reaped."""
        return self._gone

    @gone.setter
    def gone(self, gone: bool) -> None:
        self._tally.gone += int(gone) - int(self._gone)
        self._gone = gone

    def pace(self, at: float, heard: float) -> None:
        """Take note of when a report was made, in seconds of the worker's clock, and heard, in those of ours."""
        self.heard_at = heard
        if self.reported_at is not None:
            self.interval = max(at - self.reported_at, 1e-6)
        self.reported_at = at

    @property
    def over(self) -> bool:
        """Whether its function has ended, well or not."""
        return self.phase in {Phase.FINISHED, Phase.FAILED}


class Group:
    """All workers of one attempt, which began from the checkpoint of report ``start``."""

    def __init__(self, attempt: int, placements: Iterable[Placement], start: int, renames: bool = True):
        self.attempt = attempt
        self.start = start
        self.tally = Tally()
        self.workers = [Worker(placement, self.tally) for placement in placements]
        self.assembly = Assembly(attempt, len(self.workers), start, renames)
        self.failures: list[Failure] = []
        self._gatherings: dict[str, dict[int, bytes]] = {}

    @property
    def gone(self) -> bool:
        """Whether every process is reaped."""
        return self.tally.gone == len(self.workers)

    def every(self, phase: Phase) -> bool:
        """Whether all workers are in this phase."""
        return self.tally.phases[phase] == len(self.workers)

    @property
    def ready(self) -> bool:
        """Whether no worker is still on its way to the function."""
        return not (self.tally.phases[Phase.STARTING] or self.tally.phases[Phase.SETTING_UP])

    @property
    def over(self) -> bool:
        """Whether the function has ended on every rank, well or not."""
        return self.tally.phases[Phase.FINISHED] + self.tally.phases[Phase.FAILED] == len(self.workers)

    def alive(self) -> list[Worker]:
        """Return the workers whose process is not known to be gone."""
        return [worker for worker in self.workers if not worker.gone]

    def by_host(self, ranks: Iterable[int]) -> dict[str, list[int]]:
        """Return these ranks by the host on which they run."""
        hosts: dict[str, list[int]] = {}
        for rank in ranks:
            hosts.setdefault(self.workers[rank].placement.host, []).append(rank)
        return hosts

    def phases(self) -> dict[int, str]:
        """Return each rank's phase, for people."""
        return {worker.rank: worker.phase.value for worker in self.workers}

    def reports(self) -> list[int]:
        """Return the number of each rank's last report."""
        return [self.assembly.delivered(worker.rank) for worker in self.workers]

    def next_common_report(self, lead: float) -> int:
        """Return the first report that no rank will have made within ``lead`` seconds, as far as is known here."""
        return max(
            self.assembly.delivered(worker.rank) + math.ceil(lead / worker.interval) + 1 for worker in self.workers
        )

    @property
    def unexplained(self) -> bool:
        """Whether ranks have only shown what they show when another one disappears."""
        return bool(self.failures) and all(map(looks_like_a_consequence, self.failures))

    def fail(
        self,
        worker: Worker,
        *,
        error: ErrorInfo | None = None,
        exit: ExitInfo | None = None,
        lost: str = "",
        preempted: bool = False,
    ) -> Failure:
        """Record what ended a worker before it finished."""
        worker.phase = Phase.FAILED
        failure = Failure(
            attempt=self.attempt,
            rank=worker.rank,
            host=worker.placement.hostname,
            report=self.assembly.delivered(worker.rank),
            error=error,
            exit=exit,
            lost=lost,
            consequence=worker.killed and error is None,
            preempted=preempted,
        )
        self.failures.append(failure)
        return failure

    def offer(self, rank: int, offer: Offer) -> dict[int, Gathered]:
        """Take one rank's part of a gathering and return what to tell which ranks now."""
        parts = self._gatherings.setdefault(offer.key, {})
        parts[rank] = offer.data
        if len(parts) == len(self.workers):
            del self._gatherings[offer.key]
            everything = Gathered(key=offer.key, data=[parts[r] for r in range(len(self.workers))])
            return dict.fromkeys(range(len(self.workers)), everything)
        return self.broken_gatherings()

    def broken_gatherings(self) -> dict[int, Gathered]:
        """Return what to tell ranks that wait for one that has finished and so will never join them."""
        if not self._gatherings:
            return {}
        finished = {worker.rank for worker in self.workers if worker.phase is Phase.FINISHED}
        told: dict[int, Gathered] = {}
        for key, parts in list(self._gatherings.items()):
            missing = sorted(finished - set(parts))
            if missing:
                error = f"rank {missing[0]} has finished and will never join {key!r}"
                told.update({rank: Gathered(key=key, data=[], error=error) for rank in parts})
                del self._gatherings[key]
        return told
