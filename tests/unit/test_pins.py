"""Checkpoints that another trial is to go on from are kept, and no longer than for that."""

from __future__ import annotations

from shoal._runtime.pins import Pin, Pins

FIRST, SECOND = Pin("owner", "checkpoint_000001"), Pin("owner", "checkpoint_000002")


def test_what_is_reserved_is_deleted_once_nobody_is_to_go_on_from_it():
    pins, deleted = Pins(), []
    pins.reserve("adopter", FIRST)
    pins.delete(FIRST, lambda: deleted.append(1))
    pins.delete(SECOND, lambda: deleted.append(2))
    assert deleted == [2]
    pins.release("adopter")
    assert deleted == [2, 1]


def test_a_trial_that_is_to_go_on_from_a_later_one_lets_go_of_the_earlier():
    pins, deleted = Pins(), []
    pins.reserve("adopter", FIRST)
    pins.delete(FIRST, lambda: deleted.append(1))
    pins.reserve("adopter", SECOND)
    assert deleted == [1]
