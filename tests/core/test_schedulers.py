"""Schedulers against what their algorithms say, worked out by hand or with numpy."""

from __future__ import annotations

import math
from fractions import Fraction
from random import Random
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from population import Population

from shoal import tune
from shoal._core.trials import TrialStatus
from shoal.tune.schedulers import (
    ASHAScheduler,
    FIFOScheduler,
    MedianStoppingRule,
    PopulationBasedTraining,
)

# ---- first in, first out --------------------------------------------------------------------------------------------


def test_fifo_lets_every_trial_go_on_and_runs_new_ones_before_paused_ones():
    population = Population(FIFOScheduler(), 3)
    assert population.report(0, 1, None) == "CONTINUE"
    population.trials[0].status = TrialStatus.PAUSED
    population.trials[2].status = TrialStatus.PENDING
    assert population.scheduler.choose_trial_to_run(population) is population.trials[2]
    population.trials[2].status = TrialStatus.RUNNING
    assert population.scheduler.choose_trial_to_run(population) is population.trials[0]


# ---- asynchronous successive halving --------------------------------------------------------------------------------


def asha(**settings: Any) -> ASHAScheduler:
    return ASHAScheduler(**{"metric": "x", "mode": "max", "max_t": 27, "reduction_factor": 3, **settings})


def test_asha_by_hand():
    """Rungs 1, 3, 9. A trial goes on if it reaches the 2/3 quantile of those before it at the rung."""
    population = Population(asha(), 6)
    table = [
        # trial, time, value, what follows        earlier at the rung, and their 2/3 quantile
        (0, 1, 0.50, "CONTINUE"),  # none
        (1, 1, 0.40, "STOP"),  # .50 -> .50
        (2, 1, 0.60, "CONTINUE"),  # .40 .50 -> .4667
        (0, 2, 0.10, "CONTINUE"),  # no rung
        (3, 1, 0.45, "STOP"),  # .40 .50 .60 -> .5333
        (4, 1, 0.55, "CONTINUE"),  # .40 .45 .50 .60 -> .50
        (2, 3, 0.70, "CONTINUE"),  # the first at rung 3
        (0, 3, 0.65, "STOP"),  # .70 -> .70
        (4, 4, 0.69, "CONTINUE"),  # beyond rung 3, decided there: .65 .70 -> .6833
        (4, 5, 0.10, "CONTINUE"),  # decided already
        (2, 9, 0.90, "CONTINUE"),  # the first at rung 9
        (2, 26, 0.10, "CONTINUE"),
        (2, 27, 0.95, "STOP"),  # max_t
    ]
    for trial, time, value, follows in table:
        assert population.report(trial, time, value) == follows, (trial, time)


def exact_quantile(values: list[float], share: Fraction) -> float:
    ordered, place = sorted(values), share * (len(values) - 1)  # in fractions: a third of three is one
    low, high = ordered[math.floor(place)], ordered[math.ceil(place)]
    return high if low == -math.inf else low + (high - low) * float(place - math.floor(place))


@given(st.integers(0, 10_000), st.sampled_from(["max", "min"]), st.sampled_from([2, 3, 4]))
@example(seed=2515, mode="min", factor=3)  # a value that lies exactly on the quantile between two others
def test_asha_decides_as_its_definition_in_any_order_of_arrival(seed: int, mode: str, factor: int):
    rng = Random(seed)
    scheduler = asha(mode=mode, reduction_factor=factor, max_t=factor**3)
    population = Population(scheduler, 12)
    rungs = [factor**k for k in range(3)]
    assert scheduler.rungs == [rungs]
    seen: dict[int, list[float]] = {rung: [] for rung in rungs}
    times = dict.fromkeys(range(12), 0)
    while times:
        number = rng.choice(list(times))
        times[number] += 1
        value = rng.choice([rng.random(), math.nan]) if rng.random() < 0.1 else round(rng.random(), 1)
        if times[number] == factor**3:
            expected = "STOP"
        elif times[number] in rungs:
            earlier = seen[times[number]]
            worth = -math.inf if math.isnan(value) else value if mode == "max" else -value
            cutoff = exact_quantile(earlier, 1 - Fraction(1, factor)) if earlier else -math.inf
            expected = "CONTINUE" if worth > -math.inf and worth >= cutoff - 1e-12 else "STOP"
            seen[times[number]].append(worth)
        else:
            expected = "CONTINUE"
        assert population.report(number, times[number], value) == expected
        if expected == "STOP":
            del times[number]


def test_asha_takes_a_value_that_is_no_number_for_the_worst():
    """C25."""
    for value in (math.nan, None, "text"):
        population = Population(asha(), 3)
        assert population.report(0, 1, value) == "STOP"
        assert population.report(1, 1, 0.1) == "CONTINUE"
        assert population.report(2, 1, value) == "STOP"


def test_asha_shares_trials_out_among_brackets():
    scheduler = asha(brackets=3)
    assert scheduler.rungs == [[1, 3, 9], [3, 9], [9]]
    population = Population(scheduler, 6)
    assert population.report(0, 1, 0.9) == "CONTINUE"
    assert population.report(1, 1, 0.1) == "CONTINUE"  # its bracket begins at 3
    assert population.report(3, 1, 0.1) == "STOP"  # of the first bracket, and worse than trial 0


def test_asha_may_leave_the_end_to_the_function():
    population = Population(asha(stop_last_trials=False), 1)
    assert population.report(0, 1000, 0.5) == "CONTINUE"


def test_asha_names_what_is_missing_or_impossible():
    with pytest.raises(KeyError, match="time_attr='epoch' is not in the report"):
        Population(asha(time_attr="epoch"), 1).report(0, 1, 0.5)
    for settings, words in (
        ({"max_t": 0}, "max_t=0"),
        ({"grace_period": 100}, "grace_period=100"),
        ({"reduction_factor": 1}, "reduction_factor=1"),
        ({"brackets": 0}, "brackets=0"),
        ({"mode": "best"}, "mode='best'"),
    ):
        with pytest.raises(ValueError, match=words):
            asha(**settings)


def test_a_metric_is_given_to_the_scheduler_or_to_the_experiment_and_not_two_different_ones():
    assert asha(metric=None, mode=None).set_search_properties("y", "min")
    scheduler = asha()
    assert scheduler.set_search_properties(None, None)
    assert (scheduler.metric, scheduler.mode) == ("x", "max")
    assert not scheduler.set_search_properties("y", "max")
    assert not scheduler.set_search_properties("x", "min")


# ---- median stopping ------------------------------------------------------------------------------------------------


def test_median_stopping_by_hand():
    rule = MedianStoppingRule("training_iteration", "x", "max", grace_period=2, min_samples_required=3)
    population = Population(rule, 5)
    for trial, value in enumerate((0.1, 0.3, 0.5, 0.7)):
        assert population.report(trial, 1, value) == "CONTINUE"
    # Running averages of the others at time 2: .3, .5, .7; the best of trial 0 so far is .4.
    assert population.report(0, 2, 0.4) == "STOP"
    # Those of trial 1's others: .25, .5, .7; its best is .5.
    assert population.report(1, 2, 0.5) == "CONTINUE"
    # Only what was reported by then counts: at time 1 nothing is decided, within the grace.
    assert population.report(4, 1, -5.0) == "CONTINUE"
    assert population.report(4, 3, math.nan) == "STOP"


def test_median_stopping_may_pause_and_waits_for_enough_others():
    rule = MedianStoppingRule(
        "training_iteration", "x", "min", grace_period=0, min_samples_required=1, min_time_slice=5, hard_stop=False
    )
    population = Population(rule, 2)
    assert population.report(0, 1, 9.0) == "CONTINUE"
    assert population.report(1, 1, 1.0) == "CONTINUE"
    assert population.report(0, 2, 9.0) == "PAUSE"
    assert population.report(0, 3, 9.0) == "CONTINUE"  # within the time slice


# ---- population based training --------------------------------------------------------------------------------------


def pbt(**settings: Any) -> PopulationBasedTraining:
    defaults: dict[str, Any] = {
        "time_attr": "training_iteration",
        "metric": "x",
        "mode": "max",
        "perturbation_interval": 5,
        "hyperparam_mutations": {"lr": tune.uniform(0.1, 1.0)},
    }
    return PopulationBasedTraining(**{**defaults, **settings})


def population_of_four(scheduler: PopulationBasedTraining, **config: Any) -> Population:
    return Population(scheduler, 4, lambda number: {"lr": 0.2 + 0.1 * number, "fixed": number, **config})


def test_the_worst_goes_on_from_the_best_with_a_changed_configuration():
    scheduler = pbt(resample_probability=0.0)
    population = population_of_four(scheduler)
    for trial in (1, 2, 3):  # each the best of those that have come so far
        assert population.report(trial, 5, float(trial)) == "CONTINUE"
    assert population.report(0, 4, 0.0) == "CONTINUE"  # its interval is not over
    assert population.clones == []
    assert population.report(0, 5, 0.0) == "NOOP"
    ((trial, source, config),) = population.clones
    assert (trial, source) == ("t0", "t3")
    assert config["fixed"] == 3
    assert config["lr"] in (pytest.approx(0.5 * 1.2), pytest.approx(0.5 * 0.8))
    (step,) = scheduler.lineage
    assert (step.trial_id, step.source_id, step.time, step.new_config) == ("t0", "t3", 5.0, config)
    assert step.old_config["lr"] == pytest.approx(0.2)
    # A trial is looked at once an interval.
    assert population.report(0, 9, 0.0) == "CONTINUE"


def test_changed_numbers_stay_within_their_bounds_and_lists_move_to_neighbours():
    scheduler = pbt(
        resample_probability=0.0,
        hyperparam_mutations={
            "lr": tune.uniform(0.1, 1.0),
            "size": tune.randint(1, 9),
            "batch": [16, 32, 64],
            "kind": tune.choice(["a", "b"]),
            "deep": {"rate": tune.loguniform(1e-3, 1e-1)},
        },
    )
    config: dict[str, Any] = {"lr": 0.95, "size": 8, "batch": 64, "kind": "a", "deep": {"rate": 1e-3}, "other": 1}
    for _ in range(200):
        config = scheduler.explore(config)
        assert 0.1 <= config["lr"] <= 1.0
        assert config["size"] in range(1, 9)
        assert config["batch"] in {16, 32, 64}
        assert config["kind"] in {"a", "b"}
        assert 1e-3 <= config["deep"]["rate"] <= 1e-1
        assert config["other"] == 1
    assert type(config["size"]) is int


def test_parameters_are_drawn_anew_as_often_as_asked():
    scheduler = pbt(resample_probability=1.0, hyperparam_mutations={"lr": [1, 2, 3], "f": lambda: 7})
    assert {scheduler.explore({"lr": 1, "f": 0})["lr"] for _ in range(50)} == {1, 2, 3}
    assert scheduler.explore({"lr": 1, "f": 0})["f"] == 7


def test_a_function_of_the_user_s_has_the_last_word():
    scheduler = pbt(hyperparam_mutations=None, custom_explore_fn=lambda config: {**config, "lr": 42})
    assert scheduler.explore({"lr": 1}) == {"lr": 42}


def test_nothing_is_decided_before_the_burn_in_and_for_a_population_of_one():
    population = population_of_four(pbt(burn_in_period=20))
    for trial in range(4):
        assert population.report(trial, 15, float(trial)) == "CONTINUE"
    assert population.report(0, 20, 0.0) == "CONTINUE"  # there is nobody yet to compare with
    alone = Population(pbt(), 1, lambda number: {"lr": 0.5})
    assert alone.report(0, 5, 1.0) == "CONTINUE"


def test_a_value_that_is_no_number_is_among_the_worst_and_never_copied():
    population = population_of_four(pbt())
    for trial in (1, 2, 3):
        population.report(trial, 5, float(trial))
    assert population.report(0, 5, math.nan) == "NOOP"
    assert population.clones[0][1] == "t3"
    population.report(3, 10, math.nan)
    assert population.clones[-1][0] == "t3"
    assert population.clones[-1][1] != "t3"


def test_the_synchronous_variant_decides_when_everybody_is_there():
    population = population_of_four(pbt(synch=True, quantile_fraction=0.5))
    for trial in range(3):
        assert population.report(trial, 5, float(trial)) == "PAUSE"
        assert population.scheduler.choose_trial_to_run(population) is None
    assert population.clones == []
    assert population.report(3, 5, 3.0) == "PAUSE"
    assert sorted(clone[0] for clone in population.clones) == ["t0", "t1"]
    assert {clone[1] for clone in population.clones} <= {"t2", "t3"}
    assert population.scheduler.choose_trial_to_run(population) is not None


def test_the_synchronous_variant_does_not_wait_for_trials_that_have_ended():
    scheduler = pbt(synch=True, quantile_fraction=0.5)
    population = population_of_four(scheduler)
    for trial in range(3):
        population.report(trial, 5, float(trial))
    population.trials[3].status = TrialStatus.ERROR
    scheduler.on_trial_error(population, population.trials[3])
    assert [clone[0] for clone in population.clones] == ["t0"]
    assert scheduler.choose_trial_to_run(population) is not None


def test_a_population_larger_than_the_machine_advances_together():
    population = population_of_four(pbt())
    for trial, time in ((0, 3), (1, 1), (2, 2)):
        population.report(trial, time, 0.0)
        population.trials[trial].status = TrialStatus.PAUSED
    population.trials[3].status = TrialStatus.TERMINATED
    assert population.scheduler.choose_trial_to_run(population) is population.trials[1]


def test_the_same_seed_takes_the_same_steps():
    def steps(seed: int) -> list[Any]:
        population = population_of_four(pbt(seed=seed))
        for time in range(5, 50, 5):
            for trial in range(4):
                population.report(trial, time, float((trial * time) % 7))
        return population.clones

    assert steps(1) == steps(1)
    assert steps(1) != steps(2)


def test_population_based_training_names_what_is_impossible():
    for settings, words in (
        ({"perturbation_interval": 0}, "perturbation_interval=0"),
        ({"quantile_fraction": 0.6}, "quantile_fraction=0.6"),
        ({"resample_probability": 2}, "resample_probability=2"),
        ({"hyperparam_mutations": {}}, "else every copy is the same"),
        ({"hyperparam_mutations": {"lr": 3}}, r"hyperparam_mutations\['lr'\]=3"),
        ({"hyperparam_mutations": {"a": {"b": []}}}, r"hyperparam_mutations\['a/b'\]=\[\]"),
    ):
        with pytest.raises(ValueError, match=words):
            pbt(**settings)
