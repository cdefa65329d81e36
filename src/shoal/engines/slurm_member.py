"""One of the jobs of a SLURM array that work together: ``python -m shoal.engines.slurm_member SCRIPT ARGUMENTS``.

The first one runs the script, whose engine starts hosts on the machines of all; the others wait, and lend theirs. When
the leading job ends before the script has, another one goes on with it.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType

from shoal._core.slurm import REQUEUE, TOGETHER
from shoal._runtime.lease import BEAT, LocalLease
from shoal.engines.slurm_jobs import Jobs

LOOK_EVERY = 0.5  # seconds between two looks at the others


class Member:
    """This job among those that work together.

    Parameters
    ----------
    command : sequence of str
        What the leading job runs.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]):
        directory = Path(environment[TOGETHER])
        self._jobs = Jobs(directory)
        self._output = directory.with_suffix(".out")
        self._command = list(command)
        self._environment = dict(environment)
        self._job, self._array = environment["SLURM_JOB_ID"], environment["SLURM_ARRAY_JOB_ID"]
        self._grace = float(environment.get("SHOAL_PREEMPTION_GRACE", "60"))
        self._driver: subprocess.Popen[bytes] | None = None
        self._leases: list[LocalLease] = []
        self._beat_at = 0.0
        self._asked: int | None = None  # the signal that wants this job to leave
        self._deadline = float("inf")

    def run(self) -> int:
        """Take part to the end, and return the job's exit code."""
        for number in (signal.SIGUSR1, signal.SIGTERM):
            signal.signal(number, self._on_signal)
        while (lease := self._jobs.join(self._job, self._environment)) is None:
            time.sleep(LOOK_EVERY)
        self._leases.append(lease)
        try:
            return self._take_part()
        finally:
            for lease in self._leases:
                lease.release()

    def _take_part(self) -> int:
        said = False
        while True:
            code = self._jobs.code
            if code is not None:
                return code
            if self._asked is not None:
                if self._may_go():
                    return REQUEUE if self._asked == signal.SIGUSR1 else 0
            elif (lead := self._jobs.take_the_lead()) is not None:
                self._leases.append(lead)
                return self._lead()
            elif not said:
                said = True
                print("this job lends its machines to the one that runs the script", flush=True)
            self._beat()
            time.sleep(LOOK_EVERY)

    def _lead(self) -> int:
        """Run the script."""
        print(f"this job runs the script; what that prints is in {self._output}", flush=True)
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # inherited: one that comes too early does not end the driver
        with self._output.open("ab") as output:
            self._driver = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
            )
        signal.signal(signal.SIGUSR1, self._on_signal)
        if self._asked is not None:
            self._driver.send_signal(self._asked)
        while True:
            try:
                code = self._driver.wait(timeout=LOOK_EVERY)
                break
            except subprocess.TimeoutExpired:
                self._beat()
        code = 128 - code if code < 0 else code
        if code != REQUEUE:
            self._jobs.end(code)
            if shutil.which("scancel"):  # elsewhere they find out when they start
                subprocess.run(["scancel", "--state=PENDING", self._array], check=False)
        return code

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._driver is not None:
            self._driver.send_signal(number)
        elif self._asked is None:
            self._asked = number
            self._deadline = time.monotonic() + self._grace
            self._jobs.leave(self._job)

    def _may_go(self) -> bool:
        """Whether nobody is left on the machines of this job, which is wanted back."""
        return self._jobs.is_vacated(self._job) or not self._jobs.led or time.monotonic() > self._deadline

    def _beat(self) -> None:
        if time.monotonic() < self._beat_at:
            return
        self._beat_at = time.monotonic() + BEAT
        try:
            for lease in self._leases:
                lease.beat()
        except OSError as error:
            print(f"shoal: this job cannot show that it lives: {error}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(Member([sys.executable, *sys.argv[1:]], os.environ).run())
