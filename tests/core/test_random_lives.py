"""Runs whose surroundings do anything, in any order: no step is illegal, no promise is broken, every run ends."""

from __future__ import annotations

import random

import pytest
from harness import Story

from shoal._core import commands as do
from shoal._core import events as on
from shoal._core.group import Phase
from shoal._core.messages import FileEntry, Finished, Ready, Report, Store, Stored, WorkerHello
from shoal._core.records import AttemptStarted, CheckpointCommitted, CheckpointDeleted, fold
from shoal._core.retention import CheckpointPolicy
from shoal._core.states import RunState


def live(seed: int) -> Story:
    """Let one run live through random events; what a process cannot do in its state is not done to it."""
    rng = random.Random(seed)
    size = rng.randint(1, 4)
    story = Story(size, max_failures=rng.choice([0, 1, 3]), keep=CheckpointPolicy(num_to_keep=rng.choice([None, 1, 2])))
    commits: list[int] = []
    for _ in range(400):
        if story.run.state.final:
            break
        step(story, rng, commits)
        check(story)
    for _ in range(400):  # and now nothing more happens than what has to
        if story.run.state.final:
            break
        settle(story, commits)
    return story


def step(story: Story, rng: random.Random, commits: list[int]) -> None:
    commits += [c.n for c in story.done if isinstance(c, do.Commit) and c.n not in commits]
    story.wait(rng.choice([0.0, 0.01, 0.2, 6.0]))
    if story.run.state.final:
        return
    group = story.run.group
    if story.run.state in (RunState.PENDING, RunState.RESTARTING):
        if rng.random() < 0.9:
            story.acquired(story.size)
        elif rng.random() < 0.3:
            story.see(on.Infeasible(reason="no machine is left"))
        return
    assert group is not None
    if commits and rng.random() < 0.7:
        story.see(on.CommitDone(n=commits[-1]))
    if rng.random() < 0.01:
        story.see(on.StopAsked(reason="stop", kill=rng.random() < 0.3))
    if rng.random() < 0.005 and not story.run.state.final:
        story.see(on.StorageFailed(reason="full"))
    if rng.random() < 0.01 and not story.run.state.final:
        story.see(on.HostLost(host="h0", reason="cable"))
    alive = story.run.group.alive() if story.run.group and not story.run.state.final else []
    if alive:
        act(story, rng, rng.choice(alive).rank)


def act(story: Story, rng: random.Random, rank: int) -> None:
    group = story.run.group
    assert group is not None
    worker = group.workers[rank]
    if rng.random() < 0.03 or worker.killed:
        story.exits(rank, signal=9)
        return
    if worker.over:
        if any(c.attempt == group.attempt for c in story.all(do.Tell) if c.rank == rank):
            story.exits(rank)
        return
    if worker.phase is Phase.STARTING:
        story.hears(rank, WorkerHello(token="", pid=1))
    elif worker.phase is Phase.SETTING_UP:
        story.hears(rank, Ready())
    else:
        train(story, rng, rank)


def train(story: Story, rng: random.Random, rank: int) -> None:
    group = story.run.group
    assert group is not None
    chance = rng.random()
    waiting = [
        c.message.n
        for c in story.done
        if isinstance(c, do.Tell) and c.attempt == group.attempt and c.rank == rank and isinstance(c.message, Store)
    ]
    if waiting and chance < 0.5:
        story.hears(rank, Stored(n=waiting[-1], files=[FileEntry(path=f"f{rank}", size=1)]))
    elif chance < 0.9:
        n = group.assembly.delivered(rank) + 1
        files = [FileEntry(path=name, size=1) for name in ("model", f"f{rank}")] if n % 3 == 0 else None
        story.hears(rank, Report(n=n, metrics={"x": n}, at=1000.0 + story.now, files=files))
    elif chance < 0.95:
        story.hears(rank, Finished(stopped=rng.random() < 0.5))
    else:
        story.raises(rank, rng.choice(["ValueError", "RuntimeError"]), rng.choice(["bad", "Connection closed by peer"]))


def settle(story: Story, commits: list[int]) -> None:
    """Let workers finish, processes go, commits be done, and time pass."""
    commits += [c.n for c in story.done if isinstance(c, do.Commit) and c.n not in commits]
    if story.run.state in (RunState.PENDING, RunState.RESTARTING):
        story.acquired(story.size)
    for n in commits:
        if story.run.group is not None:
            story.see(on.CommitDone(n=n))
    group = story.run.group
    for worker in list(group.alive()) if group else []:
        if story.run.state.final or story.run.group is not group:
            return
        if worker.phase is Phase.STARTING:
            story.hears(worker.rank, WorkerHello(token="", pid=1))
        if not worker.over:
            story.hears(worker.rank, Finished())
    story.wait(60)
    if not story.run.state.final and story.run.group is group:
        story.reap()


def check(story: Story) -> None:
    """What must be so after every event."""
    assert fold(c.record for c in story.all(do.Persist)) == story.run.history
    committed = {r.n for r in story.records(CheckpointCommitted)}
    deleted = {r.n for r in story.records(CheckpointDeleted)}
    kept = {c.n for c in story.run.history.checkpoints}
    assert committed - deleted <= kept
    if committed:
        assert max(committed) in kept
    starts = story.records(AttemptStarted)
    assert [s.attempt for s in starts] == list(range(1, len(starts) + 1))
    for start in starts:
        assert start.checkpoint == 0 or start.checkpoint in committed


@pytest.mark.parametrize("block", range(10))
def test_any_life_of_a_run_keeps_its_promises_and_ends(block: int):
    for seed in range(block * 300, block * 300 + 300):
        story = live(seed)
        assert story.run.state.final, f"seed {seed}: {story.run.state}"
        assert len(story.all(do.Finish)) == 1
