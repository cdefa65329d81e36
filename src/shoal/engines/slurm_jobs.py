"""Jobs of a SLURM array that work together: who leads, and which machines the others lend.

They share a directory, with one of their own for each job. A job is there as long as its lease is renewed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from shoal._core.errors import RunExists
from shoal._core.nodes import Node
from shoal._core.slurm import Allocation, telling
from shoal._runtime.files import write_json
from shoal._runtime.lease import LocalLease, alive, holder_of

ALLOCATION, LEAVING, VACATED, ENDED = "allocation.json", "leaving", "vacated", "ended"


class Jobs:
    """The directory of jobs that work together."""

    def __init__(self, directory: Path):
        self._directory = directory
        self._lead = directory / "lead"
        self._lead.mkdir(parents=True, exist_ok=True)

    def join(self, job: str, environment: Mapping[str, str]) -> LocalLease | None:
        """Lend the machines of a job for as long as the lease is renewed; nothing while its last start seems to live.

        A job that is queued again is known by its old number.
        """
        place = self._directory / job
        place.mkdir(exist_ok=True)
        lease = _leased(place)
        if lease is not None:
            for said in (LEAVING, VACATED):
                (place / said).unlink(missing_ok=True)
            write_json(place / ALLOCATION, telling(environment))
        return lease

    def take_the_lead(self) -> LocalLease | None:
        """Become the job that runs the script; nothing while another one is."""
        return _leased(self._lead)

    @property
    def led(self) -> bool:
        """Whether a job runs the script."""
        holder = holder_of(self._lead)
        return holder is not None and alive(holder)

    def lent(self, besides: str) -> list[Node]:
        """Return the machines of all jobs but one."""
        found: list[Node] = []
        for place in sorted(self._directory.iterdir()):
            if place.name == besides or not (place / ALLOCATION).exists():
                continue
            holder = holder_of(place)
            if holder is None or not alive(holder):
                continue
            allocation = Allocation.of(json.loads((place / ALLOCATION).read_text()))
            leaving = (place / LEAVING).exists()
            found += [node._replace(leaving=leaving) for node in allocation.shared()]
        return found

    def leave(self, job: str) -> None:
        """Say that the machines of a job are wanted back."""
        (self._directory / job / LEAVING).touch()

    def vacate(self, job: str) -> None:
        """Say that nothing is left on the machines of a job."""
        (self._directory / job / VACATED).touch()

    def is_vacated(self, job: str) -> bool:
        """Whether nothing is left on the machines of a job that leaves."""
        return (self._directory / job / VACATED).exists()

    def end(self, code: int) -> None:
        """Say that the script has ended, with which exit code."""
        write_json(self._directory / ENDED, code)

    @property
    def code(self) -> int | None:
        """The exit code of the script; ``None`` before its end."""
        file = self._directory / ENDED
        return int(json.loads(file.read_text())) if file.exists() else None


def _leased(place: Path) -> LocalLease | None:
    try:
        return LocalLease(place)
    except RunExists:
        return None
