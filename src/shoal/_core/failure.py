"""What ended a worker, which of several failures is the cause, and whether the run may try again."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence

import msgspec

from shoal._core.messages import ErrorInfo, ExitInfo


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """One rank of one attempt that did not finish, in the order in which it became known.

    Exactly one of ``error`` (an exception), ``exit`` (the process ended) and ``lost`` (what else became of it) is set;
    ``consequence`` is true where shoal itself ended the worker because of another failure, ``preempted`` where the
    worker had been told that it would be taken away.
    """

    attempt: int
    rank: int
    host: str
    report: int
    error: ErrorInfo | None = None
    exit: ExitInfo | None = None
    lost: str = ""
    consequence: bool = False
    preempted: bool = False


class FailurePolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How failures of the group are answered.

    ``max_failures`` is how often it may be started again (-1 is without end), counted since the last new checkpoint
    where ``reset_on_progress`` is set. ``backoff`` is the first wait in seconds after a failure without progress since
    the one before it; ``progress_timeout`` how long a rank may go without a report. Preemptions have a budget of their
    own, ``max_preemptions``, and ``preemption_grace`` seconds.
    """

    max_failures: int = 0
    reset_on_progress: bool = False
    backoff: float = 1.0
    max_preemptions: int = -1
    preemption_grace: float = 0.0
    progress_timeout: float | None = None


LONGEST_BACKOFF = 60.0


class Restart(msgspec.Struct, frozen=True, kw_only=True):
    """Try again after some seconds. ``hopeless`` says that the same thing has just happened at the same place."""

    after: float = 0.0
    hopeless: bool = False


class GiveUp(msgspec.Struct, frozen=True, kw_only=True):
    """Do not try again."""

    reason: str


# What the other side of a broken collective says. An exception like this is a cause only where there is no other.
_COLLECTIVE = re.compile(
    r"connection (?:was )?(?:closed|reset|refused)|closed by peer|broken pipe|socket timeout|nccl|gloo|"
    r"store.*(?:timed? ?out|closed)|process ?group|distbackend|distnetwork|will never join|timed out.*collective",
    re.IGNORECASE,
)


def looks_like_a_consequence(failure: Failure) -> bool:
    """Whether a failure is what a rank shows when another rank disappeared from a collective."""
    if failure.consequence:
        return True
    return failure.error is not None and bool(_COLLECTIVE.search(f"{failure.error.type}: {failure.error.message}"))


def by_cause(failures: Sequence[Failure]) -> list[Failure]:
    """Return the failures with the root cause first: causes before preemptions, and those before consequences."""
    return sorted(failures, key=lambda f: (f.consequence, looks_like_a_consequence(f), f.preempted))


def decide(policy: FailurePolicy, failures: int, causes: Sequence[Failure]) -> Restart | GiveUp:
    """Decide what follows a failure of the group.

    Parameters
    ----------
    failures : int
        How many failures count so far, this one included.
    causes : sequence of Failure
        The root causes since the last progress, a new checkpoint; the last is of this failure.
    """
    same = len(causes) > 1 and _is_the_same(causes[-2], causes[-1])
    again = (
        " The same exception at the same report came twice in a row: starting again will hardly heal it" if same else ""
    )
    if policy.max_failures < 0 or failures <= policy.max_failures:
        wait = policy.backoff * 2 ** (len(causes) - 2) if len(causes) > 1 else 0.0
        return Restart(after=min(wait, LONGEST_BACKOFF), hopeless=same)
    if policy.max_failures == 0:
        return GiveUp(reason="max_failures is 0, so the run is not started again")
    return GiveUp(reason=f"that was failure {failures}, and max_failures is {policy.max_failures}.{again}".rstrip("."))


def _is_the_same(one: Failure, other: Failure) -> bool:
    if one.error is None or other.error is None:
        return False
    return (one.error.type, one.error.message, one.report) == (other.error.type, other.error.message, other.report)


def describe_exit(exit: ExitInfo) -> str:
    """Say how a process ended, in words that need no manual."""
    memory = f", peak memory {human_bytes(exit.peak_memory)}" if exit.peak_memory else ""
    if exit.out_of_memory:
        return f"was killed by the kernel because memory ran out (SIGKILL, pid {exit.pid}{memory})"
    if exit.signal is not None:
        try:
            name = signal.Signals(exit.signal).name
        except ValueError:
            name = f"signal {exit.signal}"
        hint = {"SIGSEGV": ", a crash in native code", "SIGBUS": ", often a full /dev/shm", "SIGABRT": ", an abort"}
        return f"was ended by {name}{hint.get(name, '')} (pid {exit.pid}{memory})"
    return (
        f"ended with exit code {exit.code} before its function returned: os._exit(), or native code that exits "
        f"(pid {exit.pid}{memory})"
    )


def headline(failure: Failure) -> str:
    """Say in one line what happened to whom."""
    who = f"rank {failure.rank} on {failure.host}"
    if failure.consequence:
        return f"{who} was ended by shoal after the failure"
    if failure.error is not None:
        first_line = failure.error.message.strip().split("\n", 1)[0]
        return f"{who} raised {failure.error.type}" + (f": {first_line}" if first_line else "")
    if failure.exit is not None:
        return f"{who} {describe_exit(failure.exit)}"
    return f"{who} {failure.lost}"


def human_bytes(n: float) -> str:
    """Return a size as people read it."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if n < 1024:
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1024
    return f"{n:.1f} TiB"
