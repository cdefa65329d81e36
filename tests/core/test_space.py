"""Search spaces: what may be drawn is drawn, evenly and exactly; conditions, grids and functions resolve."""

from __future__ import annotations

import math
from collections import Counter
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal import tune
from shoal._core.domains import Float, Integer, multiples
from shoal._core.space import as_space, check, domains, grids, named, resolve


def drawn(domain: Any, count: int = 2000) -> list[Any]:
    rng = Random(0)
    return [domain.draw(rng) for _ in range(count)]


def config(space: dict[str, Any], seed: int = 0) -> Any:
    return resolve(as_space(space), Random(seed))


# ---- domains (C24) --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("domain", "allowed"),
    [
        (tune.qrandint(1, 10, 3), {3, 6, 9}),
        (tune.qrandint(0, 9, 3), {0, 3, 6, 9}),
        (tune.qrandint(3, 4, 3), {3}),
        (tune.randint(3, 5), {3, 4}),
        (tune.randint(-1, 0), {-1}),
        (tune.quniform(0.1, 0.5, 0.1), {0.1, 0.2, 0.3, 0.4, 0.5}),
        (tune.quniform(0.0, 0.25, 0.1), {0.0, 0.1, 0.2}),
        (tune.choice(["a", "b", None]), {"a", "b", None}),
    ],
)
def test_every_allowed_value_is_drawn_and_each_as_often(domain: Any, allowed: set[Any]):
    counts = Counter(drawn(domain, 3000))
    assert set(counts) == allowed
    assert min(counts.values()) > 0.75 * 3000 / len(allowed)


@pytest.mark.parametrize(
    ("domain", "lowest", "highest"),
    [
        (tune.lograndint(1, 1000), 1, 999),
        (tune.qlograndint(1, 1000, 10), 10, 1000),
        (tune.qloguniform(0.01, 1.0, 0.01), 0.01, 1.0),
        (tune.lograndint(7, 8), 7, 7),
    ],
)
def test_logarithmic_values_reach_both_ends_and_each_magnitude_as_often(domain: Any, lowest: float, highest: float):
    values = drawn(domain, 20000)
    assert min(values) == lowest
    assert max(values) >= 0.9 * highest
    assert max(values) <= highest
    if highest / lowest >= 90:
        middle = math.sqrt(lowest * highest)
        assert 0.4 < sum(value < middle for value in values) / len(values) < 0.6


@given(st.floats(-1e6, 1e6), st.floats(0, 1e6), st.sampled_from([0.001, 0.1, 0.25, 3.0, 7.5]), st.integers(0, 99))
def test_steps_are_exact_and_within_the_bounds(lower: float, width: float, q: float, seed: int):
    domain = Float(lower, lower + width, q=q)
    if domain.check():
        assert "no multiple of the step" in domain.check()
        return
    value = domain.draw(Random(seed))
    assert lower <= value <= lower + width
    first, last = multiples(value, value, q)
    assert first == last  # the value is a multiple of the step, in decimal digits


@given(st.integers(-1000, 1000), st.integers(1, 500), st.booleans(), st.integers(0, 99))
def test_integers_stay_below_their_upper_bound(lower: int, width: int, log: bool, seed: int):
    domain = Integer(lower, lower + width, log=log)
    if domain.check():
        assert log
        assert lower <= 0
        return
    assert lower <= domain.draw(Random(seed)) < lower + width


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: tune.uniform(1, 0), r"tune\.uniform: lower=1, upper=0: nothing lies between"),
        (lambda: tune.loguniform(0, 1), "a logarithm needs bounds of more than 0"),
        (lambda: tune.quniform(0.1, 0.2, 1.0), "no multiple of the step lies between the bounds"),
        (lambda: tune.quniform(0, 1, 0), "q=0 must be more than 0"),
        (lambda: tune.randint(3, 3), "nothing lies between"),
        (lambda: tune.randint(0.5, 3), "lower=0.5 is no whole number"),
        (lambda: tune.choice([]), "nothing to choose from"),
        (lambda: tune.randn(0, 0), "sd=0 must be more than 0"),
        (lambda: tune.uniform(0, float("inf")), "bounds must be finite"),
        (lambda: tune.sample_from(3), "3 cannot be called"),
    ],
)
def test_a_domain_without_values_is_refused_where_it_is_made(make: Any, words: str):
    with pytest.raises(ValueError, match=words):
        make()


# ---- spaces ---------------------------------------------------------------------------------------------------------


def test_domains_are_found_at_any_depth_of_dictionaries_lists_and_tuples():
    space = as_space({"a": tune.uniform(0, 1), "b": [{"c": tune.randint(0, 2)}, (1, tune.choice([5]))], "d": 3})
    assert [named(path) for path, _ in domains(space)] == ["a", "b/0/c", "b/1/1"]
    result = config(space)
    assert 0 <= result["a"] <= 1
    assert result["b"][0]["c"] in {0, 1}
    assert result["b"][1] == (1, 5)
    assert result["d"] == 3


def test_the_same_seed_gives_the_same_configuration_and_another_one_another():
    space = {"a": tune.uniform(0, 1), "b": tune.choice(range(1000)), "c": tune.sample_from(lambda c: c["a"] * 2)}
    assert config(space, 1) == config(space, 1)
    assert config(space, 1) != config(space, 2)


def test_conditional_spaces_draw_only_what_was_chosen():
    space = {"opt": tune.choice([{"name": "adam"}, {"name": "sgd", "momentum": tune.uniform(0.5, 0.9)}])}
    results = [config(space, seed)["opt"] for seed in range(50)]
    assert {"name": "adam"} in results
    sgd = [result for result in results if result["name"] == "sgd"]
    assert sgd
    assert all(0.5 <= result["momentum"] <= 0.9 for result in sgd)


def test_functions_see_what_is_resolved_and_what_they_return_is_drawn_too():
    """C8."""
    space = {
        "layers": tune.sample_from(lambda: tune.randint(1, 4)),
        "sizes": tune.sample_from(lambda spec: [tune.choice([8, 16]) for _ in range(spec.config.layers)]),
        "total": tune.sample_from(lambda config: sum(config["sizes"])),
        "nested": {"half": tune.sample_from(lambda config: config["total"] / 2)},
    }
    for seed in range(20):
        result = config(space, seed)
        assert len(result["sizes"]) == result["layers"]
        assert set(result["sizes"]) <= {8, 16}
        assert result["nested"]["half"] * 2 == result["total"] == sum(result["sizes"])


def test_functions_that_wait_for_each_other_are_said():
    space = {"a": tune.sample_from(lambda c: c["b"]), "b": tune.sample_from(lambda c: c["a"])}
    with pytest.raises(ValueError, match="functions wait for each other: 'a' needs 'b', 'b' needs 'a'"):
        config(space)


def test_a_function_that_raises_is_named():
    with pytest.raises(KeyError) as caught:
        config({"a": {"b": tune.sample_from(lambda c: c["nothing"])}})
    assert caught.value.__notes__ == ["raised by the function at param_space['a/b']"]


def test_domains_without_an_end_are_said():
    def again() -> Any:
        return tune.sample_from(again)

    with pytest.raises(ValueError, match="'a' gives domains within domains without an end"):
        config({"a": again()})


def test_grids_make_every_combination():
    space = as_space({"a": tune.grid_search([1, 2]), "b": {"c": tune.grid_search(["x", "y"])}, "d": tune.uniform(0, 1)})
    points = grids(space)
    assert len(points) == 4
    results = [resolve(space, Random(0), point) for point in points]
    assert [(r["a"], r["b"]["c"]) for r in results] == [(1, "x"), (1, "y"), (2, "x"), (2, "y")]
    assert len({r["d"] for r in results}) == 1  # the generator decides, not the grid


def test_values_of_a_grid_may_have_domains_in_them():
    space = as_space({"a": tune.grid_search([tune.uniform(0, 1), 5])})
    first, second = (resolve(space, Random(0), point) for point in grids(space))
    assert 0 <= first["a"] <= 1
    assert second["a"] == 5


def test_what_cannot_be_drawn_is_named_with_its_key():
    with pytest.raises(ValueError, match=r"param_space\['a/0'\]: a grid inside of a choice"):
        check(as_space({"a": [tune.choice([{"b": tune.grid_search([1])}])]}))
    with pytest.raises(ValueError, match=r"param_space\['a'\]: Grid is not possible: the grid is empty"):
        check(as_space({"a": tune.grid_search([])}))
    with pytest.raises(ValueError, match=r"param_space\['x'\]: Float is not possible"):
        check({"x": Float(2.0, 1.0)})
