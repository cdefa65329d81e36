"""How a run with a range of workers changes its size."""

from __future__ import annotations

from harness import Story

from shoal._core import commands as do
from shoal._core import events as on
from shoal._core.records import AttemptEnded
from shoal._core.states import RunState


def asked(story: Story) -> list[int]:
    return [command.at_least for command in story.all(do.Acquire)]


def resized(story: Story, size: int) -> Story:
    """Let the old group go and the new one train."""
    story.reap()
    story.size = size
    story.acquired(size)
    return story.training()


def test_the_largest_group_is_asked_for_first_and_after_a_while_whatever_is_there():
    story = Story((2, 8))
    assert asked(story) == [8]
    story.wait(4.9)
    assert asked(story) == [8]
    story.wait(0.2)
    assert asked(story) == [8, 2]
    story.size = 3
    story.training()
    assert len(story.run.group.workers) == 3


def test_a_group_that_was_granted_in_time_is_not_asked_for_again():
    story = Story((2, 8))
    story.size = 8
    story.training()
    story.wait(60)
    assert asked(story) == [8]


def test_an_answer_to_what_was_asked_for_before_is_not_taken():
    story = Story((2, 8))
    story.wait(5.1)
    stale = on.Acquired(slots=(on.HostSlots(host="a", hostname="a", count=8),), ticket=1)
    story.see(stale)
    assert story.run.state is RunState.PENDING
    story.size = 3
    story.training()
    story.see(stale)
    story.see(on.CapacityChanged(workers=2, ticket=1))
    assert story.run.state is RunState.RUNNING
    assert len(story.run.group.workers) == 3


def test_a_fixed_number_is_asked_for_once():
    story = Story(4)
    story.wait(60)
    assert asked(story) == [4]


def test_a_group_grows_at_the_next_checkpoint_and_begins_from_it():
    story = Story((1, 4), resize_interval=0)
    story.size = 2
    story.training()
    story.room(4)
    story.reports(0, 1)
    story.reports(1, 1)
    assert story.run.state is RunState.RUNNING
    story.checkpoint(2)
    assert story.run.state is RunState.ENDING
    story.reap()
    assert story.run.state is RunState.RESIZING
    assert asked(story) == [4, 4]
    story.size = 4
    story.training()
    assert [(a.world_size, a.checkpoint) for a in story.run.history.attempts] == [(2, 0), (4, 2)]
    assert story.run.history.group_failures == 0
    assert "room for 4 workers" in story.records(AttemptEnded)[0].reason


def test_a_group_does_not_grow_more_often_than_allowed():
    story = Story((1, 4), resize_interval=60)
    story.size = 2
    story.training()
    story.room(4)
    story.checkpoint(1)
    assert story.run.state is RunState.RUNNING
    story.wait(60)
    story.checkpoint(2)
    assert story.run.state is RunState.ENDING


def test_a_group_does_not_grow_beyond_its_range():
    story = Story((1, 2), resize_interval=0)
    story.size = 2
    story.training()
    story.room(100)
    story.checkpoint(1)
    assert story.run.state is RunState.RUNNING


def test_a_group_shrinks_at_once_and_that_is_no_failure():
    story = Story((1, 4), resize_interval=60)
    story.size = 4
    story.training()
    story.checkpoint(1)
    story.room(2)
    assert story.run.state is RunState.ENDING
    resized(story, 2)
    assert [(a.world_size, a.checkpoint) for a in story.run.history.attempts] == [(4, 0), (2, 1)]
    assert story.run.history.group_failures == 0


def test_a_group_shrinks_while_it_starts():
    story = Story((1, 4))
    story.size = 4
    story.acquired(4)
    story.room(2)
    assert story.run.state is RunState.ENDING
    resized(story, 2)
    assert [a.world_size for a in story.run.history.attempts] == [4, 2]


def test_a_group_that_fails_while_its_room_shrinks_begins_again_in_the_room_that_is_left():
    story = Story((1, 4), max_failures=1)
    story.size = 4
    story.training()
    story.exits(0, signal=9)
    story.room(2)
    story.wait(1)
    story.reap()
    assert story.run.state is RunState.RESTARTING
    assert asked(story) == [4, 4]
    story.size = 2
    story.training()
    assert [a.world_size for a in story.run.history.attempts] == [4, 2]


def test_a_fixed_number_of_workers_stays():
    story = Story(4).training()
    story.room(1)
    assert story.run.state is RunState.RUNNING


def test_a_run_waits_where_there_is_room_for_fewer_than_its_smallest_number():
    story = Story((2, 4), resize_interval=0)
    story.size = 4
    story.training()
    story.room(1)
    story.reap()
    assert story.run.state is RunState.RESIZING
    story.wait(600)
    assert story.run.state is RunState.RESIZING
    story.size = 2
    story.training()
    assert story.run.state is RunState.RUNNING


def test_a_run_of_which_a_machine_is_lost_goes_on_with_what_is_left():
    story = Story((2, 4), max_failures=1)
    story.size = 4
    story.acquired(2, 2)
    story.training()
    story.checkpoint(1)
    story.see(on.HostLost(host="h1", reason="cable cut"))
    story.wait(0)
    story.reap()
    assert story.run.state is RunState.RESTARTING
    story.wait(5.1)
    assert asked(story) == [4, 4, 2]
    story.size = 2
    story.training()
    assert [(a.world_size, a.checkpoint) for a in story.run.history.attempts] == [(4, 0), (2, 1)]


def test_a_real_failure_at_the_moment_of_a_resize_counts_as_one():
    story = Story((1, 4), resize_interval=0, max_failures=0)
    story.size = 2
    story.training()
    story.room(1)
    story.raises(1, "ValueError", "bad")
    story.wait(1)
    story.reap()
    assert story.run.state is RunState.FAILED


def test_a_stop_wins_over_a_resize():
    story = Story((1, 4), resize_interval=0)
    story.size = 2
    story.training()
    story.see(on.StopAsked(reason="Ctrl-C"))
    story.room(1)
    assert story.run.state is RunState.RUNNING
    story.finishes(0, stopped=True)
    story.finishes(1, stopped=True)
    story.reap()
    assert story.run.state is RunState.STOPPED
