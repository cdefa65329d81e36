"""Workers that are taken away: agreed on by all ranks, and not counted as failures."""

from __future__ import annotations

from harness import Story

from shoal._core import commands as do
from shoal._core import events as on
from shoal._core.failure import FailurePolicy
from shoal._core.messages import AskCalls, Calls, FileEntry, PreemptAt, Preempted, Report, StopAt, Stored
from shoal._core.preemption import AGREE_SECONDS
from shoal._core.records import AttemptEnded, AttemptStarted
from shoal._core.states import RunState


def preempted(grace: float = 60.0, max_preemptions: int = -1, max_failures: int = 0) -> Story:
    policy = FailurePolicy(max_failures=max_failures, max_preemptions=max_preemptions, preemption_grace=grace)
    story = Story(3, policy=policy).training()
    story.hears(1, Preempted())
    return story


def test_all_ranks_are_told_at_the_first_call_that_none_has_made():
    story = preempted()
    for rank, count in ((0, 7), (2, 9), (1, 8)):
        assert story.told(rank, AskCalls) == [AskCalls()]
        assert story.told(rank, PreemptAt) == []
        story.hears(rank, Calls(count=count))
    answers = [story.told(rank, PreemptAt) for rank in range(3)]
    assert answers == [[PreemptAt(call=10, deadline_ms=1_060_000, ranks=[1])]] * 3


def test_a_rank_that_does_not_answer_does_not_hold_the_others_up():
    story = preempted()
    story.hears(0, Calls(count=3))
    story.wait(AGREE_SECONDS)
    assert story.told(0, PreemptAt)[0].call == 4


def test_a_function_that_ends_because_of_it_starts_again_without_a_failure():
    story = preempted()
    for rank in range(3):
        story.finishes(rank, informed=True)
    story.reap()
    assert story.run.state is RunState.STARTING
    assert (story.run.history.group_failures, story.run.history.preemptions) == (0, 1)


def test_a_function_that_ends_by_itself_has_finished():
    story = preempted()
    for rank in range(3):
        story.finishes(rank)
    story.reap()
    assert story.end.state is RunState.FINISHED


def test_after_the_grace_the_group_is_ended_and_starts_again():
    story = preempted(grace=5.0)
    story.wait(4.9)
    assert story.run.state is RunState.RUNNING
    story.wait(0.2)
    story.reap()
    assert story.run.state is RunState.STARTING
    assert story.records(AttemptEnded)[0].reason.endswith("was preempted")


def test_a_preempted_rank_that_has_finished_is_not_missed():
    story = preempted(grace=5.0)
    story.finishes(1)
    story.wait(6)
    assert story.run.state is RunState.RUNNING


def test_a_preempted_rank_that_dies_is_a_preemption():
    story = preempted()
    story.exits(1, signal=9)
    story.wait(1)
    story.reap()
    assert story.run.state is RunState.STARTING
    assert story.run.history.preemptions == 1


def test_a_bug_at_the_same_time_counts_as_the_failure_that_it_is():
    story = preempted()
    story.exits(1, signal=9)
    story.raises(2, "KeyError", "'lr'")
    story.wait(1)
    story.reap()
    assert story.end.state is RunState.FAILED
    assert story.end.failures[0].rank == 2


def test_the_budget_of_preemptions_is_kept():
    story = preempted(max_preemptions=0)
    story.exits(1, signal=9)
    story.wait(1)
    story.reap()
    assert story.end.state is RunState.FAILED
    assert "preemption 1, and max_preemption_failures is 0" in story.end.reason


def test_survivors_of_an_announced_loss_have_until_the_deadline_to_commit_what_they_hold_whole():
    """C13: the ranks that go die before their report; the others hold a replica."""
    story = preempted(grace=30.0)
    for rank in range(3):
        story.hears(rank, Calls(count=3))
    story.exits(1, signal=9)
    story.wait(5)
    assert story.all(do.Kill) == []
    entries = [FileEntry(path="model", size=1)]
    for rank in (0, 2):
        story.hears(rank, Report(n=1, metrics={}, at=1000.0, files=entries, replicated=True))
    story.hears(0, Stored(n=1, files=entries))
    assert [c.n for c in story.all(do.Commit)] == [1]
    story.see(on.CommitDone(n=1))
    for rank in (0, 2):
        story.finishes(rank, informed=True)
    story.reap()
    started = story.records(AttemptStarted)[-1]
    assert (started.attempt, started.checkpoint) == (2, 1)
    assert story.run.history.group_failures == 0


def test_survivors_that_never_ask_are_not_waited_for():
    story = preempted(grace=30.0)
    for rank in range(3):
        story.hears(rank, Calls(count=0))
    story.exits(1, signal=9)
    story.wait(0.1)
    assert story.all(do.Kill)


# ---- one machine is wanted back --------------------------------------------------------------------------------------


def wanted_back(grace: float = 60.0) -> Story:
    story = Story(2, policy=FailurePolicy()).acquired(1, 1).training()
    story.see(on.PreemptionNotice(reason="n1 is wanted back", grace=grace, host="h1"))
    return story


def test_when_a_machine_is_wanted_back_all_ranks_may_save_and_the_next_attempt_asks_for_new_room():
    story = wanted_back()
    for rank in range(2):
        story.hears(rank, Calls(count=4))
    assert [story.told(rank, PreemptAt)[0].ranks for rank in range(2)] == [[1], [1]]
    for rank in range(2):
        story.finishes(rank, informed=True)
    story.reap()
    assert story.all(do.Release) and len(story.all(do.Acquire)) == 2
    assert story.run.history.preemptions == 1
    assert story.run.history.group_failures == 0


def test_on_a_machine_that_is_wanted_back_a_function_that_does_not_ask_is_ended_when_the_time_is_over():
    story = wanted_back(grace=50.0)
    story.wait(49.9)
    assert not story.all(do.Kill)
    story.wait(2.2)
    assert story.all(do.Kill)
    story.reap()
    assert len(story.all(do.Acquire)) == 2
    assert story.run.history.group_failures == 0


def test_a_machine_that_is_wanted_back_between_two_attempts_is_not_begun_on_again():
    story = Story(2, max_failures=2, policy=FailurePolicy(max_failures=2, backoff=5.0)).acquired(1, 1).training()
    for _ in range(2):
        story.exits(1, signal=9)
        story.exits(0, signal=9)
    assert story.run.state is RunState.RESTARTING
    story.see(on.PreemptionNotice(reason="n1 is wanted back", grace=60.0, host="h1"))
    story.wait(10)
    assert len(story.all(do.Acquire)) == 2


def test_a_machine_of_others_that_is_wanted_back_changes_nothing():
    story = Story(2).acquired(1, 1).training()
    story.see(on.PreemptionNotice(reason="n7 is wanted back", grace=60.0, host="h7"))
    assert not story.told(0, AskCalls)
    story.finishes(0)
    story.finishes(1)
    story.reap()
    assert story.end.state is RunState.FINISHED


# ---- the whole run goes on in another process ------------------------------------------------------------------------


def leaving(grace: float = 60.0, **policy: int) -> Story:
    story = Story(2, policy=FailurePolicy(**policy)).training()
    story.see(on.PreemptionNotice(reason="the job is taken back", grace=grace))
    return story


def test_when_a_run_leaves_all_ranks_are_told_and_it_stops_once_they_have_saved():
    story = leaving()
    for rank in range(2):
        story.hears(rank, Calls(count=4))
    assert [story.told(rank, PreemptAt)[0].ranks for rank in range(2)] == [[0, 1], [0, 1]]
    for rank in range(2):
        story.finishes(rank, informed=True)
    story.reap()
    assert story.end.state is RunState.STOPPED
    assert story.end.reason == "the job is taken back"
    assert story.run.history.group_failures == 0


def test_a_function_that_does_not_ask_stops_at_its_next_report_in_good_time():
    story = leaving(grace=50.0)
    story.wait(39.9)
    assert not story.told(0, StopAt)
    story.wait(0.2)
    assert story.told(0, StopAt)
    for rank in range(2):
        story.finishes(rank, stopped=True)
    story.reap()
    assert story.end.state is RunState.STOPPED


def test_a_function_that_has_finished_by_then_has_finished():
    story = leaving()
    for rank in range(2):
        story.finishes(rank)
    story.reap()
    assert story.end.state is RunState.FINISHED


def test_a_failure_while_a_run_leaves_is_counted_as_the_failure_that_it_is():
    story = leaving(max_failures=3)
    story.raises(0)
    story.reap()
    assert story.end.state is RunState.STOPPED  # the next process goes on
    assert story.run.history.group_failures == 1
    story = leaving(max_failures=0)
    story.raises(0)
    story.reap()
    assert story.end.state is RunState.FAILED


def test_a_run_that_waits_for_room_leaves_at_once():
    story = Story(2)
    story.see(on.PreemptionNotice(reason="the job is taken back", grace=60.0))
    assert story.end.state is RunState.STOPPED


def test_what_the_engine_says_is_shown():
    story = Story(2)
    said = story.see(on.EngineSays(text="waiting for room"))
    assert [c.text for c in said if isinstance(c, do.Say)] == ["waiting for room"]
