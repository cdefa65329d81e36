"""The states of a run and the table of its legal transitions.

A step that the table lacks is refused: it is a fault of shoal, and the error tells the story of the run.
"""

from __future__ import annotations

import enum
from collections import deque

from shoal._core.errors import ShoalError


class RunState(enum.StrEnum):
    """Where a run stands."""

    PENDING = "PENDING"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    ENDING = "ENDING"
    RESTARTING = "RESTARTING"
    RESIZING = "RESIZING"
    FINISHED = "FINISHED"
    FAILED = "FAILED"
    STOPPED = "STOPPED"

    @property
    def final(self) -> bool:
        """Whether nothing happens after this state."""
        return self in FINAL


class Step(enum.StrEnum):
    """Why a run goes from one state to the next."""

    ACQUIRED = "room for the group"
    READY = "every rank is ready"
    ENDING = "the attempt is ending"
    COMPLETE = "every rank finished"
    RESTART = "a failure that may be retried"
    RESIZE = "another number of workers"
    GIVE_UP = "a failure that may not be retried"
    STOP = "stopped as asked"


FINAL = frozenset({RunState.FINISHED, RunState.FAILED, RunState.STOPPED})

_S = RunState
TRANSITIONS: dict[tuple[RunState, Step], RunState] = {
    (_S.PENDING, Step.ACQUIRED): _S.STARTING,
    (_S.PENDING, Step.GIVE_UP): _S.FAILED,
    (_S.PENDING, Step.STOP): _S.STOPPED,
    (_S.STARTING, Step.READY): _S.RUNNING,
    (_S.STARTING, Step.ENDING): _S.ENDING,
    (_S.RUNNING, Step.ENDING): _S.ENDING,
    (_S.ENDING, Step.COMPLETE): _S.FINISHED,
    (_S.ENDING, Step.RESTART): _S.RESTARTING,
    (_S.ENDING, Step.RESIZE): _S.RESIZING,
    (_S.ENDING, Step.GIVE_UP): _S.FAILED,
    (_S.ENDING, Step.STOP): _S.STOPPED,
    (_S.RESTARTING, Step.ACQUIRED): _S.STARTING,
    (_S.RESTARTING, Step.GIVE_UP): _S.FAILED,
    (_S.RESTARTING, Step.STOP): _S.STOPPED,
    (_S.RESIZING, Step.ACQUIRED): _S.STARTING,
    (_S.RESIZING, Step.GIVE_UP): _S.FAILED,
    (_S.RESIZING, Step.STOP): _S.STOPPED,
}


class IllegalTransition(ShoalError):
    """A step that the table does not have."""

    def __init__(self, state: RunState, step: Step, story: list[str]):
        told = "\n  ".join(story[-20:])
        super().__init__(f"a run that is {state} cannot take the step {step!r}; its story so far:\n  {told}")


def next_state(state: RunState, step: Step, story: list[str]) -> RunState:
    """Return the state after ``step``, or raise :class:`IllegalTransition`."""
    try:
        return TRANSITIONS[state, step]
    except KeyError:
        raise IllegalTransition(state, step, story) from None


class Course:
    """The course that a run takes: where it stands, and what has happened to it of late."""

    def __init__(self) -> None:
        self.state = RunState.PENDING
        self._story: deque[str] = deque(maxlen=100)

    def note(self, now: float, what: str) -> None:
        """Keep in mind what happens at the time ``now``."""
        self._story.append(f"{now:.3f} {self.state} {what}")

    def step(self, step: Step) -> RunState:
        """Take a step and return the state that it leads to, or raise :class:`IllegalTransition`."""
        self.state = next_state(self.state, step, list(self._story))
        return self.state


def diagram() -> str:
    """Return the table as a Mermaid state diagram, for the documentation."""
    lines = ["stateDiagram-v2", "    [*] --> PENDING"]
    lines += [f"    {before} --> {after}: {step}" for (before, step), after in TRANSITIONS.items()]
    lines += [f"    {state} --> [*]" for state in RunState if state.final]
    return "\n".join(lines)
