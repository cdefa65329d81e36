"""Every searcher over a library, through the same suite: it learns, it says what it cannot do, and it comes back."""

from __future__ import annotations

import math
import re
import warnings
from random import Random

import pytest
from searching import search

from shoal import tune
from shoal._core.trials import Searcher
from shoal.tune import Tuner
from shoal.tune.search import ConcurrencyLimiter

LIBRARIES = ("optuna", "hyperopt", "nevergrad", "bayesopt", "ax")
LEARNING = ("optuna", "nevergrad", *(pytest.param(name, marks=pytest.mark.thorough) for name in ("bayesopt", "ax")))
SPACE = {
    "x": tune.uniform(-5, 5),
    "lr": tune.loguniform(1e-4, 1),
    "units": tune.quniform(0, 1, 0.05),
    "layers": tune.randint(1, 9),
    "batch": tune.qlograndint(16, 256, 16),
    "inner": {"kind": tune.choice(["a", "b", (1, 2)])},
    "one": tune.choice(["only"]),
    "double": tune.sample_from(lambda config: config["x"] * 2),
    "fixed": [1, 2],
}


@pytest.fixture(autouse=True)
def _quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the libraries' own
        yield


def made(name: str, space=None, *, mode: str = "min", seed: int = 3, num_samples: int = 30, **arguments) -> Searcher:
    if name == "bayesopt":
        arguments = {"random_state": None, "random_search_steps": 5, **arguments}
    searcher = tune.create_searcher(name, **arguments)
    assert searcher.set_search_properties(
        "loss", mode, SPACE if space is None else space, num_samples=num_samples, seed=seed
    )
    return searcher


def loss(config) -> float:
    return (config["x"] - 1) ** 2 + math.log10(config["lr"] / 0.01) ** 2


def run(searcher: Searcher, count: int, first: int = 0, value=loss):
    told = []
    for number in range(first, first + count):
        trial_id = f"t{number}"
        config = searcher.suggest(trial_id)
        result = {"loss": value(config), "training_iteration": 1}
        searcher.on_trial_result(trial_id, result)
        searcher.on_trial_complete(trial_id, result)
        told.append((trial_id, config, result))
    return told


@pytest.mark.parametrize("name", LIBRARIES)
def test_suggestions_are_within_the_space_and_hold_all_of_it(name):
    for _, config, _ in run(made(name), 12):
        assert -5 <= config["x"] <= 5
        assert 1e-4 <= config["lr"] <= 1
        assert config["units"] == pytest.approx(round(config["units"] / 0.05) * 0.05)
        assert isinstance(config["layers"], int)
        assert 1 <= config["layers"] <= 8
        assert isinstance(config["batch"], int)
        assert config["batch"] % 16 == 0
        assert 16 <= config["batch"] <= 256
        assert config["inner"]["kind"] in ["a", "b", (1, 2)]
        assert (config["one"], config["fixed"]) == ("only", [1, 2])
        assert config["double"] == config["x"] * 2


def own_loop_of_hyperopt(count, seed):
    import numpy as np
    from hyperopt import Trials, fmin, hp, tpe

    space = {"x": hp.uniform("x", -5, 5), "lr": hp.loguniform("lr", math.log(1e-4), 0)}
    trials = Trials()
    rng = np.random.default_rng(seed)
    fmin(loss, space, algo=tpe.suggest, max_evals=count, trials=trials, rstate=rng, show_progressbar=False)
    return trials.losses()


def own_loop_of_optuna(count, seed):
    import optuna

    def objective(trial):
        return loss({"x": trial.suggest_float("x", -5, 5), "lr": trial.suggest_float("lr", 1e-4, 1, log=True)})

    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
    study.optimize(objective, n_trials=count)
    return [trial.value for trial in study.trials]


@pytest.mark.parametrize(("name", "own"), [("hyperopt", own_loop_of_hyperopt), ("optuna", own_loop_of_optuna)])
def test_it_suggests_what_the_library_does_in_its_own_loop(name, own):
    space = {"x": tune.uniform(-5, 5), "lr": tune.loguniform(1e-4, 1)}
    told = run(made(name, space, seed=4), 30)
    assert [result["loss"] for _, _, result in told] == pytest.approx(own(30, 4))


@pytest.mark.parametrize("name", LEARNING)  # HyperOpt goes on exploring for long
def test_it_learns(name):
    space = {"x": tune.uniform(-5, 5), "lr": tune.loguniform(1e-4, 1)}
    count = 20 if name == "ax" else 45
    told = run(made(name, space, num_samples=count), count)
    later = [result["loss"] for _, _, result in told[-10:]]
    rng = Random(0)
    random = sorted(loss({"x": rng.uniform(-5, 5), "lr": 10 ** rng.uniform(-4, 0)}) for _ in range(1000))
    assert sorted(later)[5] < random[400]  # the median of the later ones lies clearly below that of random ones
    assert min(result["loss"] for _, _, result in told) < random[60]


@pytest.mark.parametrize("name", ["hyperopt", *LEARNING])
def test_more_is_better_where_that_was_said(name):
    space = {"x": tune.uniform(-5, 5), "y": tune.uniform(0, 1)}
    count = 16 if name == "ax" else 35
    told = run(made(name, space, mode="max", num_samples=count), count, value=lambda config: config["x"])
    assert max(config["x"] for _, config, _ in told) > 4.5


@pytest.mark.parametrize("name", LIBRARIES)
def test_points_come_first_and_what_is_known_of_them_is_learned_from(name):
    points = [{"x": 1.5, "inner": {"kind": "b"}}, {"x": -2.0, "layers": 3}]
    searcher = made(name, points_to_evaluate=points)
    first, second = (searcher.suggest(f"t{number}") for number in range(2))
    assert (first["x"], first["inner"]["kind"]) == (1.5, "b")
    assert (second["x"], second["layers"]) == (-2.0, 3)
    searcher = made(name, points_to_evaluate=points, evaluated_rewards=[0.1, 5.0])
    assert searcher.suggest("t0")["x"] not in {1.5, -2.0}


@pytest.mark.parametrize("name", LIBRARIES)
def test_trials_that_fail_or_have_no_number_do_no_harm(name):
    searcher = made(name)
    for number in range(4):
        searcher.suggest(f"t{number}")
    searcher.on_trial_complete("t0", None, error=True)
    searcher.on_trial_complete("t1", {"loss": float("nan"), "training_iteration": 1})
    searcher.on_trial_complete("t2", {"other": 1, "training_iteration": 1})
    searcher.on_trial_complete("t3", {"loss": 1.0, "training_iteration": 1})
    run(searcher, 8, first=4)


@pytest.mark.parametrize("name", LIBRARIES)
def test_what_was_suggested_before_is_known_after_a_restore(name):
    told = run(made(name), 8)
    again = made(name)
    for trial_id, config, result in told:
        assert again.suggested_before(trial_id, config) == config
        again.on_trial_result(trial_id, result)
        again.on_trial_complete(trial_id, result)
    run(again, 4, first=8)


@pytest.mark.parametrize("name", ["optuna", "hyperopt", "nevergrad", "bayesopt"])
def test_the_same_seed_suggests_the_same(name):
    def configs(seed):
        return [config for _, config, _ in run(made(name, seed=seed), 10)]

    assert configs(1) == configs(1)
    assert configs(1) != configs(2)


@pytest.mark.parametrize("name", LIBRARIES)
@pytest.mark.parametrize(
    ("space", "words"),
    [
        ({"a": {"b": tune.grid_search([1, 2])}}, "param_space['a/b'] is a grid"),
        ({"a": {"b": tune.randn()}}, "param_space['a/b'] has no bounds"),
        ({"a": 1}, "nothing to search"),
    ],
)
def test_a_space_that_cannot_be_expressed_is_named_with_what_to_use_instead(name, space, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        made(name, space)


@pytest.mark.parametrize("name", ["hyperopt", "nevergrad", "bayesopt", "ax"])
def test_domains_within_a_choice_are_for_optuna(name):
    with pytest.raises(ValueError, match=r"param_space\['a'\] is a choice with domains in it.*OptunaSearch"):
        made(name, {"a": tune.choice([1, tune.uniform(0, 1)])})


@pytest.mark.parametrize("name", LIBRARIES)
def test_one_space_only_and_a_metric(name):
    searcher = tune.create_searcher(name, space={"x": tune.uniform(0, 1)})
    assert not searcher.set_search_properties("loss", "min", {"y": tune.uniform(0, 1)}, num_samples=1, seed=1)
    searcher = tune.create_searcher(name, space={"x": tune.uniform(0, 1)})
    assert searcher.set_search_properties("loss", "min", {"y": 3}, num_samples=1, seed=1)
    config = searcher.suggest("t0")
    assert config["y"] == 3
    assert 0 <= config["x"] <= 1
    with pytest.raises(ValueError, match="give metric and mode"):
        tune.create_searcher(name).set_search_properties(None, None, SPACE, num_samples=1, seed=1)


def test_optuna_suggests_within_the_choice_that_it_takes():
    space = {
        "optimizer": tune.choice(
            [{"name": "sgd", "momentum": tune.uniform(0, 1)}, {"name": "adam", "beta": tune.uniform(0.8, 0.99)}]
        )
    }
    searcher = made("optuna", space)
    told = run(searcher, 12, value=lambda config: 1.0)
    names = {config["optimizer"]["name"] for _, config, _ in told}
    assert names == {"sgd", "adam"}
    for _, config, _ in told:
        assert set(config["optimizer"]) == {"name", "momentum" if config["optimizer"]["name"] == "sgd" else "beta"}
    again = made("optuna", space)
    for trial_id, config, result in told:
        assert again.suggested_before(trial_id, config) == config
        again.on_trial_complete(trial_id, result)


def test_optuna_takes_a_function_and_several_objectives():
    import optuna

    def space(trial):
        depth = trial.suggest_int("depth", 1, 3)
        for layer in range(depth):
            trial.suggest_float(f"width_{layer}", 0, 1)
        return {"fixed": 7}

    searcher = tune.search.optuna.OptunaSearch(space, metric=["loss", "size"], mode=["min", "max"])
    assert searcher.set_search_properties(None, None, {}, num_samples=5, seed=1)
    for number in range(5):
        config = searcher.suggest(f"t{number}")
        assert config["fixed"] == 7
        assert sum(key.startswith("width") for key in config) == config["depth"]
        searcher.on_trial_complete(f"t{number}", {"loss": 1.0 / config["depth"], "size": config["depth"]})
    assert len(searcher.study.best_trials) >= 1
    searcher = tune.search.optuna.OptunaSearch(
        {"x": optuna.distributions.FloatDistribution(0, 1)}, metric="loss", mode="min"
    )
    assert searcher.set_search_properties(None, None, {}, num_samples=5, seed=1)
    assert 0 <= searcher.suggest("t0")["x"] <= 1


@pytest.mark.parametrize("name", ["optuna", "hyperopt"])
def test_a_search_with_real_trials_is_restored_with_its_searcher(name, tmp_path):
    def objective(config):
        if config["x"] > 0 and not (tmp_path / "healed").exists() and len(list(tmp_path.glob("run-*"))) > 5:
            raise ValueError("stop here")
        (tmp_path / f"run-{config['x']}").touch()
        tune.report({"loss": (config["x"] - 1) ** 2})

    space = {"x": tune.uniform(-5, 5)}
    grid = search(
        objective,
        space,
        metric="loss",
        mode="min",
        num_samples=14,
        seed=2,
        max_concurrent_trials=1,
        search_alg=ConcurrencyLimiter(tune.create_searcher(name), 2),
        run={"name": "mine", "failure_config": tune.FailureConfig(fail_fast=True)},
    )
    assert grid.num_errors == 1
    (tmp_path / "healed").touch()
    before = [result.config for result in grid]
    again = Tuner.restore(grid.experiment_path, objective, restart_errored=True).fit()
    assert len(again) == 14
    assert [result.config for result in again][: len(before)] == before
    assert again.num_terminated == 14


def test_a_missing_library_answers_with_its_pip_line(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "hyperopt", None)
    with pytest.raises(ImportError, match=r'pip install "shoal\[hyperopt\]"'):
        tune.create_searcher("hyperopt")
