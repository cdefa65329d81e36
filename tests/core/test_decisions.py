"""The small decisions: causes, retention, room, names."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal._core import jsonl
from shoal._core.errors import InfeasibleRequest
from shoal._core.events import HostSlots
from shoal._core.failure import Failure, by_cause, describe_exit, headline, human_bytes
from shoal._core.messages import ErrorInfo, ExitInfo
from shoal._core.names import LIMIT, directory_name
from shoal._core.retention import CheckpointPolicy, CommittedCheckpoint, lookup, ranked, superfluous
from shoal._core.scaling import GroupRequest, check_feasible, fitting, oversubscribed, place


def checkpoints(*scores: float | None) -> list[CommittedCheckpoint]:
    return [
        CommittedCheckpoint(n=n, name=str(n), metrics={} if score is None else {"acc": score})
        for n, score in enumerate(scores, 1)
    ]


class TestRetention:
    def test_without_a_number_everything_is_kept(self):
        assert superfluous(checkpoints(1, 2, 3), CheckpointPolicy()) == []

    def test_without_a_score_the_newest_are_kept(self):
        gone = superfluous(checkpoints(1, 2, 3, 4), CheckpointPolicy(num_to_keep=2))
        assert [c.n for c in gone] == [1, 2]

    def test_the_best_are_kept_and_the_newest_as_well(self):
        policy = CheckpointPolicy(num_to_keep=2, score_attribute="acc")
        assert [c.n for c in superfluous(checkpoints(0.9, 0.8, 0.1, 0.2), policy)] == [3]

    @pytest.mark.parametrize("order", ["max", "min"])
    def test_nan_and_missing_scores_rank_below_every_number(self, order: str):
        policy = CheckpointPolicy(num_to_keep=2, score_attribute="acc", score_order=order)
        assert [c.n for c in ranked(checkpoints(math.nan, 0.5, None, -math.inf, math.inf), policy)][:3] in (
            [5, 2, 4],
            [4, 2, 5],
        )
        kept = {1, 2, 3, 4, 5} - {c.n for c in superfluous(checkpoints(0.5, math.nan, None, 0.4, math.nan), policy)}
        assert kept == {1, 4, 5}  # 5 as the newest

    def test_a_score_may_be_nested(self):
        assert lookup({"eval": {"acc": 0.5}}, "eval/acc") == 0.5
        assert lookup({"eval/acc": 0.7, "eval": {"acc": 0.5}}, "eval/acc") == 0.7
        assert lookup({"eval": 3}, "eval/acc") is None


class TestCause:
    def failure(self, rank: int, **fields: object) -> Failure:
        return Failure(attempt=1, rank=rank, host="h", report=0, **fields)  # type: ignore[arg-type]

    def test_causes_stand_before_consequences_and_keep_their_order(self):
        gloo = ErrorInfo(type="RuntimeError", message="[../gloo] Connection closed by peer")
        failures = [
            self.failure(3, error=gloo),
            self.failure(2, exit=ExitInfo(pid=1, signal=9), consequence=True),
            self.failure(1, error=ErrorInfo(type="KeyError", message="'x'")),
            self.failure(0, exit=ExitInfo(pid=1, signal=11)),
        ]
        assert [f.rank for f in by_cause(failures)] == [1, 0, 3, 2]

    @pytest.mark.parametrize(
        ("exit", "words"),
        [
            (ExitInfo(pid=7, signal=9), "was ended by SIGKILL (pid 7"),
            (ExitInfo(pid=7, signal=11), "SIGSEGV, a crash in native code"),
            (
                ExitInfo(pid=7, signal=9, out_of_memory=True, peak_memory=3 << 30),
                "memory ran out (SIGKILL, pid 7, peak",
            ),
            (ExitInfo(pid=7, code=3), "exit code 3 before its function returned"),
            (ExitInfo(pid=7, signal=99), "signal 99"),
        ],
    )
    def test_an_exit_is_named_as_what_it_was(self, exit: ExitInfo, words: str):
        assert words in describe_exit(exit)

    def test_a_headline_is_one_line(self):
        error = ErrorInfo(type="ValueError", message="first\nsecond")
        assert headline(self.failure(1, error=error)) == "rank 1 on h raised ValueError: first"

    def test_sizes_are_readable(self):
        assert [human_bytes(n) for n in (5, 2048, 3 << 20, 5 << 30, 1 << 41)] == [
            "5 B",
            "2.0 KiB",
            "3.0 MiB",
            "5.0 GiB",
            "2.0 TiB",
        ]


class TestRoom:
    def request(self, low: int, high: int, explicit: str = "", **resources: float) -> GroupRequest:
        return GroupRequest(
            min_workers=low, max_workers=high, resources=resources, explicit=frozenset(explicit.split())
        )

    def test_cpus_that_nobody_asked_for_may_be_shared_with_a_warning(self):
        request = self.request(8, 8, CPU=1.0)
        check_feasible(request, {"CPU": 2.0}, "this machine")
        assert "8 workers share 2 CPUs" in oversubscribed(request, 8, {"CPU": 2.0})

    def test_cpus_that_were_asked_for_must_be_there(self):
        with pytest.raises(InfeasibleRequest, match=r"CPU: 32 asked \(8 x 4\), 2 there"):
            check_feasible(self.request(8, 8, "CPU", CPU=4.0), {"CPU": 2.0}, "this machine")

    def test_gpus_must_be_there(self):
        with pytest.raises(InfeasibleRequest, match=r"GPU: 4 asked \(4 x 1\), 0 there.*use_gpu=False"):
            check_feasible(self.request(4, 4, "GPU", CPU=1.0, GPU=1.0), {"CPU": 64.0}, "this machine")

    def test_a_range_takes_what_there_is(self):
        request = self.request(1, 8, "license", license=1.0)
        assert fitting(request, {"license": 3.0}) == 3
        assert fitting(request, {"license": 30.0}) == 8
        assert fitting(request, {}) == 0

    def test_ranks_are_grouped_by_host(self):
        slots = [
            HostSlots(host="a", hostname="a", count=2, devices=(("0",), ("1",))),
            HostSlots(host="b", hostname="b", count=1),
        ]
        got = [
            (p.host, p.ranks.world_rank, p.ranks.local_rank, p.ranks.local_world_size, p.ranks.node_rank, p.devices)
            for p in place(slots)
        ]
        assert got == [("a", 0, 0, 2, 0, ("0",)), ("a", 1, 1, 2, 0, ("1",)), ("b", 2, 0, 1, 1, ())]


class TestNames:
    @pytest.mark.parametrize("name", ["digits-1", "训练 run", "with 'quotes'", "пробег"])
    def test_a_plain_name_is_its_directory(self, name: str):
        assert directory_name(name) == name

    @pytest.mark.parametrize("name", ["", "  ", ".", "..", "a/b", "a\0b"])
    def test_what_cannot_name_a_directory_is_refused(self, name: str):
        with pytest.raises(ValueError, match="name="):
            directory_name(name)

    @given(st.text(min_size=1).filter(lambda t: t.strip() and t not in {".", ".."} and "/" not in t and "\0" not in t))
    def test_names_are_bounded_in_bytes(self, name: str):
        made = directory_name(name)
        assert 0 < len(made.encode()) <= LIMIT
        assert "\n" not in made

    @given(
        st.lists(
            st.text(alphabet="語ab\n ", min_size=1, max_size=300).filter(str.strip), min_size=2, max_size=5, unique=True
        )
    )
    def test_distinct_names_have_distinct_directories(self, names: list[str]):
        assert len({directory_name(name) for name in names}) == len(names)


class TestJsonLines:
    @given(
        st.recursive(
            st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats() | st.text(),
            lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        )
    )
    def test_what_is_written_is_read_again(self, value: object):
        assert repr(jsonl.decode(jsonl.encode(value))) == repr(value)

    def test_nan_is_valid_json_on_disk(self):
        assert jsonl.encode({"a": math.nan, "b": -math.inf}) == b'{"a":{"$float":"NaN"},"b":{"$float":"-Infinity"}}'

    def test_a_torn_line_is_left_out(self):
        assert jsonl.lines(b'{"a":1}\n{"a":2}\n{"a":') == [{"a": 1}, {"a": 2}]
        assert jsonl.lines(b'{"a":1}\n{"a":\n{"a":3}\n') == [{"a": 1}, {"a": 3}]
