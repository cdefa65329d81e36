"""Names of runs and searches that a person has not named."""

from __future__ import annotations

import os
import secrets
import time
from collections import Counter
from collections.abc import Mapping

from shoal._core.slurm import TOGETHER, job_name

_made: Counter[tuple[str, str]] = Counter()


def named(
    kind: str, name: str | None, resume: bool | str, environment: Mapping[str, str] = os.environ
) -> tuple[str, bool | str]:
    """Return the name of a run, and whether it goes on with what there is of that name.

    In a batch job of SLURM it stays the same when the job is queued again, and the run then goes on. So it does where
    one of several jobs that work together goes on for another.
    """
    job = job_name(environment)
    again = environment.get("SLURM_RESTART_COUNT", "0") != "0" or TOGETHER in environment
    if job and not resume and again:
        resume = "auto"
    if name is not None:
        return name, resume
    if not job:
        return f"{kind}_{time.strftime('%Y-%m-%d_%H-%M-%S')}_{secrets.token_hex(2)}", resume
    _made[kind, job] += 1
    nth = _made[kind, job]
    return f"{kind}_{job}" + (f"_{nth}" if nth > 1 else ""), resume
