"""Parts of ranks become one checkpoint, or none."""

from __future__ import annotations

from harness import Story
from hypothesis import given
from hypothesis import strategies as st

from shoal._core import commands as do
from shoal._core import events as on
from shoal._core.assembly import KEPT_METRICS, Assembly
from shoal._core.checkpoints import HELD_SECONDS
from shoal._core.ending import STORE_LIMIT
from shoal._core.messages import Digests, FileEntry, Kept, Report, Stored
from shoal._core.records import AttemptStarted, CheckpointCommitted


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


# ---- what a report that returned can rely on -------------------------------------------------------------------------


def test_a_report_returns_once_its_part_is_stored_and_the_last_one_once_the_checkpoint_is_in_the_journal():
    story = Story(2).training()
    story.reports(0, 1, ("a",))
    story.reports(1, 1, ("b",))
    story.stores(0, 1, "a")
    assert story.told(0, Kept) == [Kept(n=1)]
    assert story.told(1, Kept) == []
    (*_, record, commit, answer) = [c for c in story.stores(1, 1, "b") if not isinstance(c, do.SetTimer)]
    assert isinstance(record.record, CheckpointCommitted)
    assert isinstance(commit, do.Commit)
    assert answer.message == Kept(n=1)


def test_a_checkpoint_of_which_a_part_could_not_be_stored_is_never_committed_whoever_reports_later():
    story = Story(2).training()
    story.reports(0, 1, ("a",))
    story.hears(0, Stored(n=1, files=[], error="full"))
    story.reports(1, 1, ("b",))
    assert story.stores_asked(1) == {1: []}  # nothing is copied in vain, and nobody waits
    story.stores(1, 1)
    assert story.told(1, Kept) == [Kept(n=1)]
    assert story.all(do.Commit) == []
    story.reports(0, 2, ("a",))
    story.reports(1, 2)
    story.stores(0, 2, "a")
    assert [c.n for c in story.all(do.Commit)] == [2]


def test_digests_that_come_after_the_commit_complete_the_manifest():
    story = Story(1).training()
    story.reports(0, 1, ("a",))
    story.hears(0, Stored(n=1, files=[FileEntry(path="a", size=1)]))
    story.see(on.CommitDone(n=1))
    entry = FileEntry(path="a", size=1, digest="crc32:1")
    story.hears(0, Digests(n=1, files=[entry]))
    assert story.all(do.AddDigests) == [do.AddDigests(name="checkpoint_000001", files=(entry,))]


# ---- checkpoints of which one part is enough -------------------------------------------------------------------------


def replica(story: Story, rank: int, n: int, replicated: bool | None = True, files: tuple[str, ...] = ("model",)):
    entries = [FileEntry(path=path, size=1) for path in files]
    story.hears(rank, Report(n=n, metrics={}, at=1000.0, files=entries, replicated=replicated))


def test_survivors_commit_a_replicated_checkpoint_that_a_dead_rank_never_reported():
    story = Story(3, max_failures=1).training()
    replica(story, 1, 1)
    story.exits(0, signal=9)
    story.wait(0.1)
    assert story.all(do.Kill) == []  # rank 1 is storing what the next attempt begins from
    assert story.stores_asked(1) == {1: ["model"]}
    story.stores(1, 1, "model")
    (commit,) = story.all(do.Commit)
    assert [f.path for f in commit.files] == ["model"]
    story.see(on.CommitDone(n=1))
    story.wait(0.1)
    assert story.all(do.Kill)
    story.reap()
    assert story.records(AttemptStarted)[-1].checkpoint == 1


def test_what_a_dead_rank_was_to_store_of_a_replicated_checkpoint_is_given_to_another_that_has_it():
    story = Story(2, max_failures=1).training()
    replica(story, 0, 1)
    replica(story, 1, 1)
    assert story.stores_asked(1) == {1: []}
    story.stores(1, 1)
    assert story.told(1, Kept) == []  # it keeps its files until one rank has stored them
    story.exits(0, signal=9)
    assert story.stores_asked(1) == {1: ["model"]}
    story.stores(1, 1, "model")
    assert story.told(1, Kept) == [Kept(n=1)]
    assert [c.n for c in story.all(do.Commit)] == [1]


def test_nothing_is_given_to_a_dead_rank_whose_last_report_comes_late():
    story = Story(3, max_failures=1).training()
    story.exits(0, signal=9)
    replica(story, 0, 1)  # it was under way when the process died
    replica(story, 2, 1)
    assert story.stores_asked(2) == {1: ["model"]}
    story.stores(2, 1, "model")
    assert [c.n for c in story.all(do.Commit)] == [1]


def test_a_dead_rank_that_had_stored_its_share_is_given_no_more():
    story = Story(3, max_failures=1).training()
    for rank in range(3):
        replica(story, rank, 1)
    story.stores(1, 1)
    story.exits(1, signal=9)
    story.exits(0, signal=9)
    assert story.stores_asked(1) == {1: []}
    assert story.stores_asked(2) == {1: ["model"]}
    story.stores(2, 1, "model")
    assert [c.n for c in story.all(do.Commit)] == [1]


def test_a_replica_that_cannot_be_stored_is_stored_by_another_rank():
    story = Story(2).training()
    replica(story, 0, 1)
    replica(story, 1, 1)
    story.stores(1, 1)
    story.hears(0, Stored(n=1, files=[], error="full"))
    assert story.stores_asked(1) == {1: ["model"]}


def test_parts_with_other_names_are_shards_and_shards_of_dead_ranks_are_missed():
    story = Story(3, max_failures=1).training()
    replica(story, 0, 1, None, ("shard-0",))
    replica(story, 1, 1, None, ("shard-1",))
    story.exits(2, signal=9)
    story.stores(0, 1, "shard-0")
    story.stores(1, 1, "shard-1")
    story.wait(0.1)
    assert story.all(do.Kill)
    assert story.all(do.Commit) == []


def test_parts_of_one_name_are_replicas_unless_the_report_says_otherwise():
    for said, commits in ((None, 1), (False, 0)):
        story = Story(3, max_failures=1).training()
        replica(story, 0, 1, said)
        replica(story, 1, 1, said)
        story.exits(2, signal=9)
        story.stores(0, 1, "model")
        story.stores(1, 1)
        assert len(story.all(do.Commit)) == commits, said


def test_survivors_that_do_not_store_in_time_are_ended():
    story = Story(2, max_failures=1).training()
    replica(story, 1, 1)
    story.exits(0, signal=9)
    story.wait(STORE_LIMIT - 1)
    assert story.all(do.Kill) == []
    story.wait(2)
    assert story.all(do.Kill)


def test_a_survivor_that_reports_what_others_have_committed_meanwhile_is_answered():
    story = Story(3, max_failures=1).training()
    replica(story, 1, 1)
    story.exits(0, signal=9)
    story.stores(1, 1, "model")
    replica(story, 2, 1)
    assert story.stores_asked(2) == {1: []}
    story.stores(2, 1)
    assert story.told(2, Kept) == [Kept(n=1)]
    assert len(story.all(do.Commit)) == 1


def test_a_checkpoint_that_the_user_s_code_stores_is_there_once_one_rank_has_said_so():
    story = Story(2, max_failures=1).training()
    replica(story, 0, 1, None, ())
    replica(story, 1, 1, None, ())
    story.exits(1, signal=9)
    assert story.all(do.Commit) == []
    story.hears(0, Stored(n=1, files=[], place="s3://bucket/there"))
    (commit,) = story.all(do.Commit)
    assert (commit.name, commit.staging) == ("s3://bucket/there", "")


# ---- storage that does not rename ------------------------------------------------------------------------------------


def places(assembly: Assembly, *reports: tuple[int, str | None]) -> list[str]:
    for n, name in reports:
        assembly.report(0, Report(n=n, metrics={}, at=0, files=[FileEntry(path="a", size=1)], name=name))
    return [given.staging for given in assembly.assignments()]


def test_where_nothing_is_renamed_no_two_reports_and_attempts_share_a_directory():
    first = Assembly(1, 1, 0, renames=False)
    assert places(first, (1, None), (2, "best"), (3, "best")) == [
        "checkpoint_000001",
        "best",
        "best.attempt-1-000003",
    ]
    second = Assembly(2, 1, 0, renames=False)
    assert places(second, (1, None), (2, "best"), (3, "best")) == [
        "checkpoint_000001.attempt-2",
        "best.attempt-2",
        "best.attempt-2-000003",
    ]
    first.stored(0, Stored(n=1, files=[FileEntry(path="a", size=1)]))
    (whole,) = first.whole()
    assert whole.name == whole.staging == "checkpoint_000001"
