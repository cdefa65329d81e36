"""Parts of ranks become one checkpoint, or none."""

from __future__ import annotations

from harness import Story
from hypothesis import given
from hypothesis import strategies as st

from shoal._core import commands as do
from shoal._core import events as on
from shoal._core.assembly import KEPT_METRICS, Assembly
from shoal._core.checkpoints import HELD_SECONDS
from shoal._core.messages import FileEntry, Report, Stored


def test_the_same_file_of_several_ranks_is_stored_once_by_the_lowest():
    story = Story(3).training()
    for rank in (0, 1, 2):
        story.reports(rank, 1, ("model", f"rng-{rank}"))
    assert story.stores_asked(0) == {1: ["model", "rng-0"]}
    assert story.stores_asked(1) == {1: ["rng-1"]}
    assert story.stores_asked(2) == {1: ["rng-2"]}


def test_who_stores_what_is_decided_when_all_lower_ranks_have_reported():
    story = Story(2).training()
    story.reports(1, 1, ("model",))
    assert story.stores_asked(1) == {}
    story.reports(0, 1, ("model",))
    assert story.stores_asked(0) == {1: ["model"]}
    assert story.stores_asked(1) == {1: []}


def test_rank_0_never_waits_for_others():
    story = Story(2).training()
    story.reports(0, 1, ("model",))
    assert story.stores_asked(0) == {1: ["model"]}


def test_a_checkpoint_is_committed_when_every_rank_has_delivered_the_same_report():
    story = Story(2).training()
    story.reports(0, 1, ("model",), loss=0.5)
    story.stores(0, 1, "model")
    assert story.all(do.Commit) == []
    story.reports(1, 1)
    (commit,) = story.all(do.Commit)
    assert (commit.n, commit.name, [f.path for f in commit.files]) == (1, "checkpoint_000001", ["model"])


def test_a_checkpoint_of_which_a_part_is_missing_is_never_committed():
    story = Story(2, max_failures=1).training()
    story.reports(0, 1, ("a",))
    story.reports(1, 1, ("b",))
    story.stores(0, 1, "a")
    story.exits(1, signal=9)
    story.wait(1)
    story.reap()
    assert story.all(do.Commit) == []
    assert story.all(do.Discard) == [do.Discard(attempt=1)]
    assert story.all(do.StartWorkers)[-1].attempt == 2


def test_parts_of_two_attempts_never_meet():
    story = Story(2, max_failures=1).training()
    story.reports(0, 1, ("a",))
    story.stores(0, 1, "a")
    story.exits(1, signal=9)
    story.wait(1)
    story.reap()
    story.training()
    story.reports(1, 1, ("b",))
    story.reports(0, 1, ("a",))
    story.stores(1, 1, "b")
    assert story.all(do.Commit) == []
    story.stores(0, 1, "a")
    (commit,) = story.all(do.Commit)
    assert commit.staging == ".staging-2-000001"


def test_a_rank_that_has_finished_delivers_no_more_and_holds_nothing_up():
    story = Story(2).training()
    story.finishes(1)
    story.reports(0, 1, ("model",))
    story.stores(0, 1, "model")
    assert len(story.all(do.Commit)) == 1


def test_commits_keep_the_order_of_the_reports():
    story = Story(2).training()
    for n in (1, 2):
        story.reports(0, n, ("model",))
        story.reports(1, n, ("other",))
    story.stores(0, 2, "model")
    story.stores(1, 2, "other")
    story.stores(0, 1, "model")
    assert story.all(do.Commit) == []
    story.stores(1, 1, "other")
    assert [c.n for c in story.all(do.Commit)] == [1, 2]


def test_files_are_not_held_for_ever_for_a_lower_rank_that_does_not_report():
    story = Story(2).training()
    story.reports(1, 1, ("model",))
    story.wait(HELD_SECONDS + 0.1)
    assert story.stores_asked(1) == {1: ["model"]}
    # Rank 0 comes after all, with the same file: it waits until rank 1 has written its own, then replaces it.
    story.reports(0, 1, ("model",))
    assert story.stores_asked(0) == {}
    story.stores(1, 1, "model")
    assert story.stores_asked(0) == {1: ["model"]}
    story.stores(0, 1, "model")
    (commit,) = story.all(do.Commit)
    assert [(f.path, f.size) for f in commit.files] == [("model", 1)]  # of rank 0


def test_a_part_that_cannot_be_stored_does_not_hold_up_the_next_checkpoint():
    story = Story(1).training()
    story.reports(0, 1, ("model",))
    story.hears(0, Stored(n=1, files=[], error="disk full"))
    story.reports(0, 2, ("model",))
    story.stores(0, 2, "model")
    assert [c.n for c in story.all(do.Commit)] == [2]
    assert any("disk full" in say.text for say in story.all(do.Say))


def test_a_run_ends_only_after_its_last_commit():
    story = Story(1).training()
    story.reports(0, 1, ("model",))
    story.stores(0, 1, "model")
    story.finishes(0)
    story.exits(0)
    assert not story.run.state.final
    story.see(on.CommitDone(n=1))
    assert story.run.state.final


def test_the_metrics_of_a_checkpoint_are_those_of_rank_0():
    story = Story(2).training()
    story.reports(0, 1, loss=0.25)
    story.reports(1, 1, ("model",), loss=99.0)
    story.stores(1, 1, "model")
    assert story.run.history.checkpoints[0].metrics == {"loss": 0.25}


def test_memory_stays_flat_when_a_rank_never_reports():
    assembly = Assembly(1, 2, 0)
    for n in range(1, 10 * KEPT_METRICS):
        assembly.report(0, Report(n=n, metrics={"n": n}, at=0.0))
    assert len(assembly._rank0_metrics) <= KEPT_METRICS + 1


@given(st.permutations([(rank, n) for rank in range(3) for n in (1, 2)]), st.data())
def test_in_any_order_each_file_is_stored_by_its_lowest_rank(order: list[tuple[int, int]], data: st.DataObject):
    has = {key: data.draw(st.frozensets(st.sampled_from("abc"))) for key in order}
    assembly = Assembly(1, 3, 0)
    given_out: dict[tuple[int, int], list[str]] = {}
    turn = dict.fromkeys(range(3), 0)
    for rank, _ in order:
        turn[rank] += 1
        n = turn[rank]
        files = [FileEntry(path=path, size=1) for path in sorted(has[rank, n])]
        assembly.report(rank, Report(n=n, metrics={}, at=0.0, files=files))
        for a in assembly.assignments():
            assert (a.rank, a.n) not in given_out
            given_out[a.rank, a.n] = a.files
            assembly.stored(a.rank, Stored(n=a.n, files=[FileEntry(path=f, size=a.rank) for f in a.files]))
    whole = assembly.whole()
    assert [w.n for w in whole] == [1, 2]
    for w in whole:
        expected = {path: min(r for r in range(3) if path in has[r, w.n]) for r in range(3) for path in has[r, w.n]}
        assert {f.path: f.size for f in w.files} == expected
