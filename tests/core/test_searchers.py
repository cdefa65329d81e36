"""Searchers that shoal has itself, and the rules that end trials and experiments."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import pytest

from shoal import tune
from shoal.tune.search import BasicVariantGenerator, ConcurrencyLimiter, Repeater, Searcher
from shoal.tune.search.limits import TRIAL_INDEX
from shoal.tune.stopper import (
    CombinedStopper,
    DictStopper,
    ExperimentPlateauStopper,
    FunctionStopper,
    MaximumIterationStopper,
    NoopStopper,
    TimeoutStopper,
    TrialPlateauStopper,
    as_stopper,
)


def suggestions(searcher: Searcher, space: dict[str, Any], num_samples: int = 1, most: int = 100) -> list[Any]:
    searcher.set_search_properties("x", "max", space, num_samples=num_samples)
    found = []
    for number in range(most):
        config = searcher.suggest(f"t{number}")
        if config == Searcher.FINISHED:
            return found
        found.append(config)
    return found


# ---- the built-in generator -----------------------------------------------------------------------------------------


def test_every_point_of_the_grids_is_tried_as_often_as_asked_with_new_random_parameters():
    space = {"a": tune.grid_search([1, 2]), "b": tune.uniform(0, 1), "c": "same"}
    configs = suggestions(BasicVariantGenerator(), space, num_samples=3)
    assert [config["a"] for config in configs] == [1, 2, 1, 2, 1, 2]
    assert len({config["b"] for config in configs}) == 6
    assert {config["c"] for config in configs} == {"same"}


def test_random_parameters_may_be_the_same_within_a_sample():
    space = {"a": tune.grid_search([1, 2]), "b": tune.uniform(0, 1)}
    configs = suggestions(BasicVariantGenerator(constant_grid_search=True), space, num_samples=2)
    first, second, third, fourth = (config["b"] for config in configs)
    assert first == second != third == fourth


def test_the_same_seed_gives_the_same_configurations_whatever_happens_meanwhile():
    space = {"b": tune.uniform(0, 1)}
    one, other = BasicVariantGenerator(random_state=7), BasicVariantGenerator(random_state=7, max_concurrent=1)
    expected = suggestions(one, space, 5)
    other.set_search_properties("x", "max", space, num_samples=5)
    found = []
    for number in range(5):
        found.append(other.suggest(f"t{number}"))
        assert other.suggest("too many") is None
        other.on_trial_complete(f"t{number}", {"x": number})
    assert found == expected
    assert suggestions(BasicVariantGenerator(random_state=8), space, 5) != expected


def test_points_come_first_and_may_be_parts():
    space = {"a": tune.grid_search([1, 2]), "b": {"c": tune.uniform(0, 1), "d": tune.choice([5])}, "e": 3}
    searcher = BasicVariantGenerator(points_to_evaluate=[{"a": 9, "b": {"c": 0.5}}, {"b/c": 0.25}])
    configs = suggestions(searcher, space, num_samples=3)
    assert configs[0] == {"a": 9, "b": {"c": 0.5, "d": 5}, "e": 3}
    assert [(config["a"], config["b"]["c"]) for config in configs[1:3]] == [(1, 0.25), (2, 0.25)]
    assert len(configs) == 5  # a point that fixes the grid is one trial, the other two samples are two each
    assert len(suggestions(BasicVariantGenerator([{"e": 1}, {"e": 2}]), {"e": tune.uniform(0, 1)}, 1)) == 2


def test_a_search_without_end_goes_on():
    assert len(suggestions(BasicVariantGenerator(), {"a": tune.uniform(0, 1)}, num_samples=-1, most=500)) == 500


def test_a_point_that_is_not_in_the_space_is_named():
    for point, words in (
        ({"z": 1}, "'z' is not in param_space, which has: a, b"),
        ({"b/z": 1}, "'b/z' is not in param_space, which has: c"),
        ({"a/z": 1}, "'a' has no parameters in it"),
    ):
        searcher = BasicVariantGenerator(points_to_evaluate=[point])
        with pytest.raises(ValueError, match=words):
            suggestions(searcher, {"a": tune.uniform(0, 1), "b": {"c": 1}})


# ---- around another one ---------------------------------------------------------------------------------------------


class Recorder(Searcher):
    """Suggests numbers, and keeps what it is told."""

    def __init__(self, count: int = 100):
        super().__init__("x", "max")
        self.count = count
        self.given = 0
        self.told: list[tuple[str, Any, bool]] = []

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        if self.given == self.count:
            return self.FINISHED
        self.given += 1
        return {"n": self.given}

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        self.told.append((trial_id, result and result.get("x"), error))


def test_no_more_trials_at_a_time_than_the_limit():
    inner = Recorder()
    limiter = ConcurrencyLimiter(inner, max_concurrent=2)
    assert (limiter.metric, limiter.mode) == ("x", "max")
    assert [limiter.suggest("a"), limiter.suggest("b"), limiter.suggest("c")] == [{"n": 1}, {"n": 2}, None]
    limiter.on_trial_complete("a", {"x": 1})
    assert inner.told == [("a", 1, False)]
    assert limiter.suggest("c") == {"n": 3}
    with pytest.raises(ValueError, match="max_concurrent=0"):
        ConcurrencyLimiter(inner, 0)


def test_a_batch_ends_before_the_next_begins_and_is_told_together():
    inner = Recorder()
    limiter = ConcurrencyLimiter(inner, max_concurrent=2, batch=True)
    limiter.suggest("a")
    limiter.suggest("b")
    limiter.on_trial_complete("b", error=True)
    assert inner.told == []
    assert limiter.suggest("c") is None
    limiter.on_trial_complete("a", {"x": 1})
    assert inner.told == [("b", None, True), ("a", 1, False)]
    assert limiter.suggest("c") == {"n": 3}


def test_each_configuration_is_run_several_times_and_the_mean_is_told():
    inner = Recorder(count=2)
    repeater = Repeater(inner, repeat=3)
    configs = [repeater.suggest(f"t{number}") for number in range(7)]
    assert configs[:4] == [
        {"n": 1, TRIAL_INDEX: 0},
        {"n": 1, TRIAL_INDEX: 1},
        {"n": 1, TRIAL_INDEX: 2},
        {"n": 2, TRIAL_INDEX: 0},
    ]
    assert configs[6] == Searcher.FINISHED
    repeater.on_trial_complete("t1", {"x": 1.0})
    repeater.on_trial_complete("t0", {"x": 3.0})
    assert inner.told == []
    repeater.on_trial_complete("t2", error=True)
    assert inner.told == [("t0", 2.0, False)]
    for number, value in ((3, math.nan), (4, None), (5, math.nan)):
        repeater.on_trial_complete(f"t{number}", {"x": value})
    assert inner.told[1] == ("t3", None, True)
    assert Repeater(Recorder(), 1, set_index=False).suggest("a") == {"n": 1}


# ---- stoppers -------------------------------------------------------------------------------------------------------


def test_thresholds_end_a_trial_at_any_of_them_and_missing_metrics_do_not():
    stopper = as_stopper({"training_iteration": 10, "eval/acc": 0.9})
    assert not stopper("a", {"training_iteration": 9, "eval": {"acc": 0.89}})
    assert stopper("a", {"training_iteration": 10})
    assert stopper("a", {"training_iteration": 1, "eval": {"acc": 0.9}})
    assert not stopper("a", {"eval/acc": math.nan})
    assert not stopper.stop_all()
    with pytest.raises(TypeError, match=r"stop\['x'\]='10'"):
        DictStopper({"x": "10"})  # type: ignore[dict-item]


def test_what_a_person_may_give_as_stop():
    assert isinstance(as_stopper(None), NoopStopper)
    assert isinstance(as_stopper(lambda trial_id, result: True), FunctionStopper)
    both = as_stopper([{"a": 1}, MaximumIterationStopper(2)])
    assert not both("t", {"a": 0})
    assert both("t", {"a": 0})
    with pytest.raises(TypeError, match="stop=3"):
        as_stopper(3)


def test_a_maximum_of_reports_is_counted_for_each_trial():
    stopper = MaximumIterationStopper(3)
    assert [stopper("a", {}), stopper("b", {}), stopper("a", {}), stopper("a", {})] == [False, False, False, True]


def test_a_timeout_ends_everything():
    now = [0.0]
    stopper = TimeoutStopper(timedelta(minutes=1), clock=lambda: now[0])
    assert not stopper.stop_all()
    now[0] = 59.9
    assert not stopper.stop_all()
    now[0] = 60.0
    assert stopper.stop_all()
    assert not stopper("a", {})


def test_a_trial_on_a_plateau_is_ended():
    stopper = TrialPlateauStopper("x", std=0.01, num_results=3, grace_period=4)
    assert [stopper("a", {"x": value}) for value in (1, 1, 1, 1)] == [False, False, False, True]
    assert [stopper("b", {"x": value}) for value in (1, 2, 3, 4, 4, 4)] == [False, False, False, False, False, True]
    assert not any(stopper("c", {"x": math.nan}) for _ in range(10))
    needed = TrialPlateauStopper("x", num_results=2, grace_period=0, metric_threshold=0.5, mode="min")
    assert [needed("a", {"x": value}) for value in (1, 1, 0.4, 0.4)] == [False, False, False, True]
    with pytest.raises(ValueError, match="mode=None"):
        TrialPlateauStopper("x", metric_threshold=1)


def test_an_experiment_whose_best_results_stand_still_is_ended():
    stopper = ExperimentPlateauStopper("x", std=0.01, top=2, mode="max", patience=1)
    assert [stopper("a", {"x": value}) for value in (1.0, 5.0, 5.0, 5.0)] == [False, False, False, True]
    assert stopper.stop_all()
    moving = ExperimentPlateauStopper("x", std=0.01, top=2, mode="min")
    assert not any(moving("a", {"x": -value}) for value in range(20))


def test_combined_stoppers_all_see_every_report():
    first, second = MaximumIterationStopper(1), MaximumIterationStopper(2)
    both = CombinedStopper(first, second)
    assert both("a", {})
    assert second("a", {})  # it had seen the first report, too
    with pytest.raises(TypeError, match="not a Stopper"):
        CombinedStopper(3)  # type: ignore[arg-type]
