"""Population based bandits: the model against its formulas, and what it finds where the optimum is known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from population import Population

from shoal.tune.schedulers import PB2
from shoal.tune.schedulers.time_varying_gp import TimeVarying, most_promising


def test_the_kernel_is_the_formula_of_the_paper_and_its_gradient_its_derivative():
    rng = np.random.default_rng(0)
    inputs = np.column_stack([rng.integers(0, 9, 6).astype(float), rng.random((6, 2))])
    kernel = TimeVarying(length_scale=0.4, forgetting=0.1)
    values, gradient = kernel(inputs, eval_gradient=True)
    for i, one in enumerate(inputs):
        for j, two in enumerate(inputs):
            near = np.exp(-((one[1:] - two[1:]) ** 2).sum() / (2 * 0.4**2))
            assert values[i, j] == pytest.approx(near * 0.9 ** (abs(one[0] - two[0]) / 2))
    for place in (0, 1):
        step = np.zeros(2)
        step[place] = 1e-6
        ahead, behind = kernel.clone_with_theta(kernel.theta + step), kernel.clone_with_theta(kernel.theta - step)
        np.testing.assert_allclose(gradient[:, :, place], (ahead(inputs) - behind(inputs)) / 2e-6, atol=1e-6)


def test_what_others_try_now_is_not_tried_again():
    observed = np.array([[0.0, 0.0, place] for place in (0.1, 0.15, 0.9, 0.95)])
    changes = np.array([0.1, 0.2, 0.2, 0.1])
    context = np.zeros(2)
    alone = most_promising(observed, changes, np.empty((0, 3)), context, seed=0)
    others = np.array([[0.0, 0.0, float(alone[0])]] * 3)
    beside = most_promising(observed, changes, others, context, seed=0)
    assert abs(beside[0] - alone[0]) > 0.05


def pb2(**settings: Any) -> PB2:
    defaults: dict[str, Any] = {
        "time_attr": "training_iteration",
        "metric": "x",
        "mode": "max",
        "perturbation_interval": 1,
        "hyperparam_bounds": {"lr": [0.0, 2.0], "deep/size": [1, 9]},
    }
    return PB2(**{**defaults, **settings})


def drawn(number: int) -> dict[str, Any]:
    return {"lr": 0.1 * number, "deep": {"size": 1 + number, "kind": "a"}, "fixed": number}


def play(scheduler: PB2, intervals: int) -> list[dict[str, Any]]:
    """Let four trials train whose metric falls the slower the nearer ``lr`` is to 1.4; return what was tried."""
    population = Population(scheduler, 4, drawn)
    scores = [0.0] * 4
    for time in range(1, intervals + 1):
        for number, trial in enumerate(population.trials):
            scores[number] -= (trial.config["lr"] - 1.4) ** 2
            before = len(population.clones)
            population.report(number, time, scores[number])
            if len(population.clones) > before:
                scores[number] = scores[int(population.clones[-1][1][1:])]
    return [config for _, _, config in population.clones]


def test_the_parameters_come_near_the_best_ones_and_keep_their_bounds_and_types():
    tried = play(pb2(), 25)
    assert len(tried) >= 15
    assert all(0 <= config["lr"] <= 2 and config["deep"]["size"] in range(1, 10) for config in tried)
    assert all(config["deep"]["kind"] == "a" and isinstance(config["deep"]["size"], int) for config in tried)
    assert np.median([abs(config["lr"] - 1.4) for config in tried[-10:]]) < 0.1  # drawn at random it would be 0.5


def test_the_same_seed_decides_the_same():
    assert play(pb2(seed=3), 8) == play(pb2(seed=3), 8)
    assert play(pb2(seed=3), 8) != play(pb2(seed=4), 8)


@pytest.mark.parametrize(
    ("bounds", "complaint"),
    [
        (None, "hyperparam_bounds is empty"),
        ({"lr": [1, 1]}, r"hyperparam_bounds\['lr'\]=\[1, 1\]: give \[lower, upper\]"),
        ({"lr": 3}, r"hyperparam_bounds\['lr'\]=3"),
        ({"lr": [0, float("inf")]}, "two numbers in this order"),
    ],
)
def test_bounds_that_are_none_are_refused(bounds: Any, complaint: str):
    with pytest.raises(ValueError, match=complaint):
        pb2(hyperparam_bounds=bounds)


def test_a_parameter_that_the_space_lacks_is_named():
    with pytest.raises(ValueError, match=r"hyperparam_bounds has 'absent', but the configuration has None there"):
        play(pb2(hyperparam_bounds={"absent": [0, 1]}), 1)
