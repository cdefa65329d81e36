"""The life of a run, decided without a process."""

from __future__ import annotations

import gc
import weakref

import pytest
from harness import Story

from shoal._core import commands as do
from shoal._core import events as on
from shoal._core.ending import GRACE_AFTER_STOP, KILL_LIMIT, STOP_LEAD
from shoal._core.failure import FailurePolicy
from shoal._core.hang import NATIVE_SECONDS, STACKS_SECONDS
from shoal._core.messages import DumpStacks, Farewell, Gathered, Ready, Stacks, StopAt, WorkerHello
from shoal._core.records import AttemptEnded, AttemptStarted, RunEnded, fold
from shoal._core.retention import CheckpointPolicy
from shoal._core.states import TRANSITIONS, IllegalTransition, RunState, Step, next_state


def test_a_run_goes_from_asking_for_room_to_finished():
    story = Story(2)
    assert story.run.state is RunState.PENDING
    assert len(story.all(do.Acquire)) == 1
    story.acquired()
    assert story.run.state is RunState.STARTING
    (start,) = story.all(do.StartWorkers)
    assert [w.ranks.world_rank for w in start.workers] == [0, 1]
    story.training()
    story.reports(0, 1, loss=0.5)
    story.reports(1, 1, loss=0.7)
    story.finishes(0, value=b"v")
    assert story.told(0, Farewell) == []  # the others may still need what rank 0 keeps
    story.finishes(1)
    assert story.told(0, Farewell) == story.told(1, Farewell) == [Farewell()]
    story.reap()
    assert story.end.state is RunState.FINISHED
    assert story.end.value == b"v"
    assert story.run.last_row["loss"] == 0.5
    assert len(story.all(do.Release)) == 1


def test_a_run_is_forgotten_without_the_garbage_collector():
    story = Story(2).training()
    story.finishes(0)
    story.finishes(1)
    story.reap()
    run, attempt = weakref.ref(story.run), weakref.ref(story.run.attempt)
    gc.disable()  # a search has thousands of runs: cycles would have it collect all the time
    try:
        del story
        assert run() is attempt() is None
    finally:
        gc.enable()


def test_the_run_is_over_only_when_every_process_is_gone():
    story = Story(2).training()
    story.finishes(0)
    story.finishes(1)
    story.exits(0)
    assert not story.run.state.final
    story.exits(1)
    assert story.run.state is RunState.FINISHED


def test_the_journal_has_a_record_before_each_deed_that_it_justifies():
    story = Story(1).training()
    story.checkpoint(1)
    story.finishes(0)
    story.reap()
    kinds = [type(c).__name__ for c in story.done if isinstance(c, (do.Persist, do.StartWorkers, do.Commit, do.Finish))]
    assert kinds == ["Persist", "Persist", "StartWorkers", "Persist", "Commit", "Persist", "Persist", "Finish"]


def test_a_damaged_checkpoint_is_passed_over_for_the_next_older_one_with_a_warning():
    story = Story(1, max_failures=1).training()
    story.checkpoint(1)
    story.checkpoint(2)
    story.damage = {2: "model is missing"}
    story.exits(0, signal=9)
    story.hears(0, WorkerHello(token="", pid=1))
    assert story.all(do.SetUp)[-1].checkpoint == "checkpoint_000001"
    (warning,) = [s.text for s in story.all(do.Say) if "not sound" in s.text]
    assert "checkpoint_000002 is not sound: model is missing; checkpoint_000001 is used instead" in warning
    assert [c.n for c in story.run.history.checkpoints] == [1]


def test_a_run_without_a_sound_checkpoint_begins_anew():
    story = Story(1, max_failures=1).training()
    story.checkpoint(1)
    story.damage = {1: "it is not there"}
    story.exits(0, signal=9)
    story.hears(0, WorkerHello(token="", pid=1))
    assert story.all(do.SetUp)[-1].checkpoint is None
    assert story.run.history.attempts[-1].checkpoint == 0


def test_a_resumed_run_reads_every_byte_of_its_checkpoint_and_counts_failures_anew():
    first = Story(1, max_failures=0).training()
    first.checkpoint(1)
    first.exits(0, signal=9)
    assert first.run.state is RunState.FAILED
    second = Story(1, max_failures=0, history=fold(c.record for c in first.all(do.Persist))).acquired()
    assert [(c.checkpoint.n, c.full) for c in second.all(do.Inspect)] == [(1, True)]
    assert second.all(do.Discard) == [do.Discard(attempt=1, keep=("checkpoint_000001",))]
    assert second.all(do.StartWorkers)[0].attempt == 2
    assert second.run.history.group_failures == 0


def test_a_resumed_run_deletes_what_the_last_driver_had_no_time_to_delete():
    first = Story(1, keep=CheckpointPolicy(num_to_keep=1)).training()
    for n in (1, 2, 3):
        first.checkpoint(n)
    second = Story(1, history=fold(c.record for c in first.all(do.Persist))).acquired()
    assert [c.name for c in second.all(do.DeleteCheckpoint)] == ["checkpoint_000001", "checkpoint_000002"]


def test_a_replay_of_the_journal_is_the_history_of_the_run():
    story = Story(2, max_failures=3, keep=CheckpointPolicy(num_to_keep=1)).training()
    story.checkpoint(1, loss=1.0)
    story.checkpoint(2, loss=0.5)
    story.raises(0)
    story.wait(1)
    story.reap()
    story.training()
    story.finishes(0)
    story.finishes(1)
    story.reap()
    assert fold(c.record for c in story.all(do.Persist)) == story.run.history
    assert [a.checkpoint for a in story.run.history.attempts] == [0, 2]


def test_a_failed_group_starts_again_from_the_newest_committed_checkpoint():
    story = Story(2, max_failures=1).training()
    story.checkpoint(3, loss=1.0)
    story.raises(1)
    story.wait(1)
    story.reap()
    assert story.run.state is RunState.STARTING
    first, second = story.all(do.StartWorkers)
    assert (first.attempt, second.attempt) == (1, 2)
    story.hears(0, WorkerHello(token="", pid=1))
    set_up = story.all(do.SetUp)[-1]
    assert (set_up.checkpoint, set_up.checkpoint_report, set_up.attempt) == ("checkpoint_000003", 3, 2)


def test_a_group_is_not_started_again_before_the_last_of_the_old_one_is_gone():
    story = Story(2, max_failures=1).training()
    story.exits(0, signal=9)
    story.wait(1)
    assert len(story.all(do.StartWorkers)) == 1
    story.exits(1, signal=9)
    assert len(story.all(do.StartWorkers)) == 2


@pytest.mark.parametrize(("max_failures", "attempts"), [(0, 1), (1, 2), (3, 4)])
def test_a_group_is_started_as_often_as_max_failures_allows(max_failures: int, attempts: int):
    story = Story(1, max_failures=max_failures).acquired()
    while not story.run.state.final:
        story.hears(0, WorkerHello(token="", pid=1))
        story.raises(0)
        story.reap()
        story.wait(60)
    assert len(story.records(AttemptStarted)) == attempts
    assert story.end.state is RunState.FAILED


def test_no_limit_on_failures_is_minus_one():
    story = Story(1, max_failures=-1).acquired()
    for _ in range(50):
        story.exits(0, signal=9)
        story.wait(60)
    assert not story.run.state.final
    assert len(story.records(AttemptStarted)) == 51


def test_a_first_failure_is_retried_at_once_and_further_ones_after_a_growing_wait():
    story = Story(1, max_failures=-1).acquired()
    waits = []
    for _ in range(9):
        began = story.now
        story.exits(0, signal=9)
        while story.run.state is RunState.RESTARTING:
            story.wait(0.5)
        waits.append(story.now - began)
    assert waits == [0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
    story.training()
    story.checkpoint(1)
    story.exits(0, signal=9)
    assert story.run.state is RunState.STARTING


def test_failures_may_be_counted_since_the_last_progress_alone():
    policy = FailurePolicy(max_failures=1, reset_on_progress=True)
    story = Story(1, policy=policy).acquired()
    for n in range(1, 6):
        story.training()
        story.checkpoint(n)
        story.exits(0, signal=9)
        assert not story.run.state.final
    story.exits(0, signal=9)
    assert story.run.state is RunState.FAILED


def test_the_same_exception_at_the_same_report_twice_in_a_row_is_said_to_be_hopeless():
    story = Story(1, max_failures=2).acquired()
    for _ in range(3):
        story.training()
        story.raises(0, "ValueError", "bad")
        story.reap()
        story.wait(60)
    said = [s.text for s in story.all(do.Say) if "starting again" in s.text]
    assert "hardly heal" not in said[0]
    assert "hardly heal" in said[1]
    assert "will hardly heal it" in story.end.reason


def test_a_stop_during_the_wait_ends_the_run():
    story = Story(1, max_failures=-1).acquired()
    for _ in range(2):
        story.exits(0, signal=9)
    assert story.run.state is RunState.RESTARTING
    story.see(on.StopAsked(reason="Ctrl-C"))
    assert story.end.state is RunState.STOPPED


def test_a_group_without_reports_is_asked_for_its_stacks_and_then_fails():
    story = Story(2, policy=FailurePolicy(progress_timeout=10.0)).training()
    for n in range(1, 4):
        story.wait(5)
        story.reports(0, n)
        if n < 3:
            story.reports(1, n)
    story.wait(4.9)
    assert story.told(0, DumpStacks) == []
    story.wait(0.2)
    assert story.told(0, DumpStacks) == story.told(1, DumpStacks) == [DumpStacks()]
    story.hears(1, Stacks(text="in a loop"))
    assert story.run.state is RunState.RUNNING
    story.hears(0, Stacks(text="in all_reduce"))
    assert [(c.rank, c.text) for c in story.all(do.KeepStacks)] == [(0, "in all_reduce"), (1, "in a loop")]
    story.wait(0)
    story.reap()
    assert story.end.failures[0].rank == 1
    assert "hung: it made no report for 10 s" in story.end.failures[0].lost


def test_a_rank_that_never_gets_ready_is_hung_as_well():
    story = Story(2, policy=FailurePolicy(progress_timeout=10.0)).acquired()
    story.hears(0, WorkerHello(token="", pid=1))
    story.wait(100)
    assert story.told(0, DumpStacks) == []
    story.hears(0, Ready())
    story.wait(9)
    story.reports(0, 1)
    story.wait(5)
    story.wait(5)
    story.reap()
    assert [f.rank for f in story.end.failures if not f.consequence] == [1]


def test_a_rank_that_reports_while_it_is_asked_is_not_hung():
    story = Story(1, policy=FailurePolicy(progress_timeout=10.0)).training()
    story.wait(10)
    story.reports(0, 1)
    story.hears(0, Stacks(text="slow, not stuck"))
    assert story.run.state is RunState.RUNNING
    story.wait(9)
    assert len(story.told(0, DumpStacks)) == 1
    story.wait(2)
    assert len(story.told(0, DumpStacks)) == 2


def test_a_rank_that_cannot_answer_does_not_hold_the_others_up():
    story = Story(2, policy=FailurePolicy(progress_timeout=10.0, max_failures=1)).training()
    story.wait(10)
    story.hears(0, Stacks(text="here"))
    story.wait(5)
    assert "no answer" in story.all(do.KeepStacks)[-1].text
    story.reap()
    assert story.run.state is RunState.STARTING


def test_messages_of_an_older_attempt_are_dropped():
    story = Story(2, max_failures=1).training()
    story.raises(0)
    story.wait(1)
    story.reap()
    story.training()
    assert story.hears(0, Ready(), attempt=1) == []
    story.see(on.Heard(attempt=1, rank=0, message=Ready()))
    story.reports(0, 1, loss=1.0)
    row = story.run.last_row
    story.see(on.Exited(attempt=1, rank=1, exit=on.ExitInfo(pid=1, signal=9)))
    assert story.run.state is RunState.RUNNING
    assert story.run.last_row == row


def test_a_report_that_arrives_twice_counts_once():
    story = Story(1).training()
    story.reports(0, 1, loss=1.0)
    story.reports(0, 1, loss=1.0)
    assert len(story.all(do.WriteRow)) == 1


def test_the_user_s_exception_is_the_cause_also_when_a_broken_collective_is_told_first():
    story = Story(3).training()
    story.raises(1, "RuntimeError", "[gloo] Connection closed by peer [127.0.0.1]:1234")
    story.wait(0.1)
    story.raises(2, "RuntimeError", "Gloo: Connection reset by peer")
    story.raises(0, "KeyError", "'lr'")
    story.wait(1)
    story.reap()
    assert [f.rank for f in story.end.failures] == [0, 1, 2]
    assert story.records(AttemptEnded)[0].reason.startswith("rank 0 on h0 raised KeyError")


def test_a_killed_worker_is_the_cause_also_when_the_others_notice_it_first():
    story = Story(2).training()
    story.raises(0, "RuntimeError", "Connection closed by peer")
    story.wait(0.2)
    story.exits(1, signal=9)
    story.wait(0.1)
    story.reap()
    root = story.end.failures[0]
    assert root.rank == 1
    assert root.exit is not None
    assert root.exit.signal == 9


def test_ranks_that_shoal_ends_are_consequences():
    story = Story(2).training()
    story.raises(0)
    story.wait(1)
    story.reap()
    cause, consequence = story.end.failures
    assert (cause.rank, cause.consequence) == (0, False)
    assert (consequence.rank, consequence.consequence) == (1, True)


def test_a_worker_that_exits_without_finishing_failed():
    story = Story(1).training()
    story.exits(0, code=0)
    assert story.end.state is RunState.FAILED
    assert story.end.failures[0].exit.code == 0


def test_a_lost_host_fails_its_ranks_and_asks_for_new_room():
    story = Story(4, max_failures=1).acquired(2, 2).training()
    story.see(on.HostLost(host="h1", reason="cable cut"))
    story.wait(1)
    story.reap()
    assert story.run.state is RunState.RESTARTING
    assert len(story.all(do.Acquire)) == 2
    story.acquired(4)
    assert story.run.state is RunState.STARTING


@pytest.mark.parametrize("seen", ["RuntimeError", "ValueError"])
def test_a_machine_whose_loss_is_known_late_is_the_cause_of_broken_collectives_alone(seen: str):
    story = Story(2, max_failures=1).acquired(1, 1).training()
    story.raises(0, seen, "Connection closed by peer" if seen == "RuntimeError" else "bad")
    story.exits(0, code=1)
    story.wait(1)  # the grace is over, rank 1 is ended, and its machine says nothing
    story.see(on.HostLost(host="h1", reason="was silent for 5 s"))
    end = story.records(AttemptEnded)[-1]
    assert end.reason == ("rank 1 on h1 was lost: was silent for 5 s" if seen == "RuntimeError" else end.reason)
    assert end.failures[0].rank == (1 if seen == "RuntimeError" else 0)
    assert [failure.consequence for failure in end.failures] == [False, seen == "ValueError"]


@pytest.mark.parametrize("when", ["after its rank has gone", "between two attempts"])
def test_no_attempt_begins_on_a_machine_that_is_lost(when: str):
    story = Story(2, max_failures=2, policy=FailurePolicy(max_failures=2)).acquired(1, 1).training()
    if when == "after its rank has gone":
        story.exits(1, signal=9)
        story.see(on.HostLost(host="h1", reason="cable cut"))
        story.exits(0, signal=9)
    else:
        for _ in range(2):
            story.exits(1, signal=9)
            story.exits(0, signal=9)
        assert story.run.state is RunState.RESTARTING
        story.see(on.HostLost(host="h1", reason="cable cut"))
        story.wait(60)
    assert story.run.state is RunState.RESTARTING
    assert len(story.all(do.Acquire)) == 2


def test_a_machine_whose_ranks_have_all_finished_may_go():
    story = Story(2).acquired(1, 1).training()
    story.finishes(1)
    story.see(on.HostLost(host="h1", reason="cable cut"))
    assert story.run.state is RunState.RUNNING
    story.finishes(0)
    story.reap()
    assert story.end.state is RunState.FINISHED


def test_a_stop_reaches_all_ranks_at_the_same_report():
    story = Story(2).training()
    for n in (1, 2):
        story.reports(0, n)
        story.now += 60.0
    story.reports(1, 1)
    story.see(on.StopAsked(reason="Ctrl-C"))
    assert story.told(0, StopAt) == story.told(1, StopAt) == [StopAt(n=4)]
    story.finishes(0, stopped=True)
    story.finishes(1, stopped=True)
    story.reap()
    assert story.end.state is RunState.STOPPED
    assert story.end.reason == "Ctrl-C"


def test_ranks_that_report_often_stop_at_a_report_that_none_of_them_has_made_yet():
    story = Story(2).training()
    for n in range(1, 11):
        story.now += 0.01
        story.reports(0, n)
        story.reports(1, n)
    story.see(on.StopAsked(reason="Ctrl-C"))
    (stop,) = story.told(0, StopAt)
    assert 10 + STOP_LEAD / 0.01 <= stop.n <= 12 + STOP_LEAD / 0.01


def test_a_rank_that_waits_for_a_stopped_one_is_ended_after_the_grace():
    story = Story(2).training()
    story.see(on.StopAsked(reason="Ctrl-C"))
    story.finishes(0, stopped=True)
    story.wait(GRACE_AFTER_STOP - 0.1)
    assert story.all(do.Kill) == []
    story.wait(0.2)
    assert story.all(do.Kill)[-1].ranks == (0, 1)
    story.reap()
    assert story.end.state is RunState.STOPPED


def test_a_second_stop_kills_at_once():
    story = Story(2).training()
    story.see(on.StopAsked(reason="Ctrl-C"))
    story.see(on.StopAsked(reason="Ctrl-C twice", kill=True))
    assert story.all(do.Kill)[-1].ranks == (0, 1)
    story.reap()
    assert story.end.state is RunState.STOPPED
    assert story.end.failures == ()


def test_a_stop_before_there_is_room_ends_the_run():
    story = Story(2)
    story.see(on.StopAsked(reason="Ctrl-C"))
    assert story.end.state is RunState.STOPPED


def test_a_stop_that_comes_when_all_have_finished_changes_nothing():
    story = Story(1).training()
    story.finishes(0)
    story.see(on.StopAsked(reason="Ctrl-C"))
    story.reap()
    assert story.end.state is RunState.FINISHED


def test_a_failure_after_a_stop_was_asked_is_told_and_not_retried():
    story = Story(2, max_failures=5).training()
    story.see(on.StopAsked(reason="Ctrl-C"))
    story.raises(1, "KeyError", "'lr'")
    story.wait(5)
    story.reap()
    assert story.end.state is RunState.FAILED
    assert story.end.failures[0].rank == 1


def test_broken_storage_ends_the_run_with_its_reason():
    story = Story(2, max_failures=5).training()
    story.see(on.StorageFailed(reason="No space left on device"))
    story.reap()
    assert story.end.state is RunState.FAILED
    assert "No space left" in story.end.reason


def test_a_gathering_is_told_to_all_once_the_last_has_come():
    story = Story(3).training()
    story.offers(2, "k", b"c")
    story.offers(0, "k", b"a")
    assert story.told(0, Gathered) == []
    story.offers(1, "k", b"b")
    for rank in range(3):
        assert story.told(rank, Gathered) == [Gathered(key="k", data=[b"a", b"b", b"c"])]


def test_nobody_waits_in_a_gathering_for_a_rank_that_has_finished():
    story = Story(2).training()
    story.offers(0, "before", b"")
    story.finishes(1)
    story.offers(0, "after", b"")
    answers = story.told(0, Gathered)
    assert [a.key for a in answers] == ["before", "after"]
    assert all("rank 1 has finished and will never join" in a.error for a in answers)


def test_ranks_that_report_a_different_number_of_times_are_told_of():
    story = Story(2).training()
    for n in (1, 2, 3):
        story.reports(0, n)
    story.reports(1, 1)
    story.finishes(0)
    story.finishes(1)
    story.reap()
    assert story.end.state is RunState.FINISHED
    assert any("rank 0: 3, rank 1: 1" in say.text for say in story.all(do.Say))


def test_a_group_that_does_not_get_ready_is_told_of():
    story = Story(2).acquired()
    story.hears(0, WorkerHello(token="", pid=1))
    story.wait(31)
    assert any("rank 0: setting up, rank 1: starting" in say.text for say in story.all(do.Say))


def test_nothing_happens_after_the_end():
    story = Story(1).training()
    story.finishes(0)
    story.reap()
    assert story.see(on.StopAsked(reason="late")) == []
    assert len(story.records(RunEnded)) == 1


def test_a_step_that_the_table_lacks_is_refused_with_the_story():
    with pytest.raises(IllegalTransition, match=r"RUNNING cannot take .*\n  it began\n  it ran"):
        next_state(RunState.RUNNING, Step.COMPLETE, ["it began", "it ran"])


def test_the_story_of_a_run_names_what_workers_said_without_what_it_carries():
    story = Story(2).training()
    story.finishes(0, value=b"a gigabyte")
    with pytest.raises(IllegalTransition, match=r"RUNNING Heard\(attempt=1, rank=0, Finished\)") as refused:
        story.run._course.step(Step.COMPLETE)
    assert "gigabyte" not in str(refused.value)


def test_every_state_is_reached_and_every_one_but_the_last_is_left():
    assert set(TRANSITIONS.values()) | {RunState.PENDING} == set(RunState)
    assert {before for before, _ in TRANSITIONS} == {state for state in RunState if not state.final}


def test_a_process_that_cannot_be_killed_is_named_and_left_behind():
    """C9: shutdown has a bound, the pid is named, the run ends."""
    story = Story(2).training()
    story.raises(0)
    story.wait(0.2)
    story.exits(0)
    assert story.all(do.Kill)
    story.wait(KILL_LIMIT - 1)
    assert not story.run.state.final
    story.wait(2)
    assert story.run.state is RunState.FAILED
    (said,) = [c.text for c in story.all(do.Say) if "does not end" in c.text]
    assert "rank 1 on h0" in said
    assert "process 101" in said
    assert story.end.failures[0].rank == 0  # the cause is still the cause


def test_native_stacks_are_kept_with_the_others_and_waited_for_longer():
    story = Story(2, policy=FailurePolicy(progress_timeout=10.0)).training()
    story.without_py_spy = False
    story.wait(10)
    story.hears(0, Stacks(text="python 0"))
    story.wait(STACKS_SECONDS + 1)
    assert story.all(do.KeepStacks) == []
    for rank in range(2):
        story.see(on.NativeStacksRead(attempt=1, rank=rank, text=f"native {rank}"))
    story.wait(NATIVE_SECONDS)
    kept = {c.rank: c.text for c in story.all(do.KeepStacks)}
    assert "python 0" in kept[0]
    assert "native 0" in kept[0]
    assert "no answer" in kept[1]
    assert "native 1" in kept[1]
