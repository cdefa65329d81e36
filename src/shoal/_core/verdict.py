"""What follows when the last worker of an attempt is gone: done, stopped, once more, or given up."""

from __future__ import annotations

import msgspec

from shoal._core.events import StopAsked
from shoal._core.failure import (
    Failure,
    FailurePolicy,
    Restart,
    by_cause,
    decide,
    headline,
    looks_like_a_consequence,
)
from shoal._core.group import Group, Phase
from shoal._core.records import History
from shoal._core.states import Step


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The step that the run takes, why the attempt ended, and why the run does (where it does).

    ``failures`` are those that count, the root cause first.
    """

    step: Step
    attempt_reason: str
    run_reason: str = ""
    failures: list[Failure] = []
    wait: float = 0.0
    hopeless: bool = False
    preempted: bool = False


def judge(
    group: Group,
    policy: FailurePolicy,
    history: History,
    *,
    stop: StopAsked | None,
    resize: str,
    informed: bool,
    leaving: str = "",
    broken_storage: str,
) -> Verdict:
    """Decide what follows, after the attempts that the history has."""
    failures = by_cause(group.failures)
    causes = [failure for failure in failures if not looks_like_a_consequence(failure)]
    if broken_storage:
        return Verdict(
            step=Step.GIVE_UP, attempt_reason=broken_storage, run_reason=broken_storage, failures=_own(failures)
        )
    if stop and (stop.kill or not causes) and not group.every(Phase.FINISHED):
        # Ranks that wait for one that has left at the stop see a broken collective, or are ended by shoal.
        return Verdict(step=Step.STOP, attempt_reason=stop.reason, run_reason=stop.reason)
    if leaving and not (group.every(Phase.FINISHED) and not informed):
        return _leaving(failures, causes, policy, history, leaving)
    if resize and not causes and not group.every(Phase.FINISHED):
        return Verdict(step=Step.RESIZE, attempt_reason=resize)
    if not stop and (informed or (failures and failures[0].preempted)):
        return _after_preemption(failures, policy, history.preemptions + 1)
    if failures:
        return _after_failure(failures, policy, history, stop)
    if any(worker.stopped for worker in group.workers):
        reason = stop.reason if stop else "a worker stopped by itself"
        return Verdict(step=Step.STOP, attempt_reason=reason, run_reason=reason)
    return Verdict(step=Step.COMPLETE, attempt_reason="finished")


def _leaving(
    failures: list[Failure], causes: list[Failure], policy: FailurePolicy, history: History, reason: str
) -> Verdict:
    """The run goes on in another process. A failure of its own is counted all the same."""
    own = [failure for failure in causes if not failure.preempted]
    if own:
        verdict = _after_failure(own, policy, history, None)
        if verdict.step is not Step.RESTART:
            return verdict
        return Verdict(step=Step.STOP, attempt_reason=verdict.attempt_reason, run_reason=reason, failures=own)
    return Verdict(step=Step.STOP, attempt_reason=reason, run_reason=reason, preempted=True)


def _after_preemption(failures: list[Failure], policy: FailurePolicy, count: int) -> Verdict:
    what = headline(failures[0]) if failures else "the function ended because of a preemption"
    if 0 <= policy.max_preemptions < count:
        reason = f"that was preemption {count}, and max_preemption_failures is {policy.max_preemptions}"
        return Verdict(step=Step.GIVE_UP, attempt_reason=what, run_reason=reason, failures=failures, preempted=True)
    return Verdict(step=Step.RESTART, attempt_reason=what, failures=failures, preempted=True)


def _after_failure(failures: list[Failure], policy: FailurePolicy, history: History, stop: StopAsked | None) -> Verdict:
    what = headline(failures[0])
    if stop:
        reason = f"the run was asked to stop ({stop.reason})"
        return Verdict(step=Step.GIVE_UP, attempt_reason=what, run_reason=reason, failures=failures)
    causes = [*history.causes, failures[0]]
    decision = decide(policy, len(causes) if policy.reset_on_progress else history.group_failures + 1, causes)
    if isinstance(decision, Restart):
        return Verdict(
            step=Step.RESTART,
            attempt_reason=what,
            failures=failures,
            wait=decision.after,
            hopeless=decision.hopeless,
        )
    return Verdict(step=Step.GIVE_UP, attempt_reason=what, run_reason=decision.reason, failures=failures)


def _own(failures: list[Failure]) -> list[Failure]:
    return [failure for failure in failures if not failure.consequence]
