"""A search as a study of Optuna, and as pictures."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from shoal import tune
from shoal.train import RunConfig
from shoal.tune.schedulers import ASHAScheduler


def objective(config: dict[str, Any]) -> None:
    if config["x"] == 3:
        raise ValueError("three")
    if config["x"] == 4:
        tune.report({"loss": math.nan, "size": 1})
        return
    for step in range(3):
        tune.report({"loss": config["x"] / (step + 1), "size": -config["x"], "eval": {"acc": 0.5}})


def search(space: dict[str, Any], function: Any = objective, **config: Any) -> tune.ResultGrid:
    return tune.Tuner(
        function,
        param_space=space,
        tune_config=tune.TuneConfig(**{"metric": "loss", "mode": "min", **config}),
        run_config=RunConfig(verbose=0),
    ).fit()


def test_the_study_has_every_trial_with_its_parameters_values_and_state():
    grid = search({"x": tune.grid_search([2, 1, 3, 4]), "deep": {"kind": "a", "layers": [8, 8]}})
    study = grid.to_optuna()
    assert [trial.state.name for trial in study.trials] == ["COMPLETE", "COMPLETE", "FAIL", "FAIL"]
    assert study.metric_names == ["loss"]
    assert study.best_params == {"x": 1}  # what is the same for all is no parameter
    assert study.best_value == pytest.approx(1 / 3)
    assert study.trials[0].intermediate_values == pytest.approx({1: 2.0, 2: 1.0, 3: 2 / 3})
    assert "three" in study.trials[2].user_attrs["error"]
    assert [trial.user_attrs["trial_id"] for trial in study.trials] == [r.metrics["trial_id"] for r in grid]
    assert study.study_name == Path(grid.experiment_path).name


def test_ranges_are_those_of_the_space_also_where_a_choice_has_domains_in_it():
    space = {
        "x": tune.loguniform(1e-3, 1.0),
        "n": tune.randint(1, 5),
        "kind": tune.choice(["a", None, ("tuple",)]),
        "opt": tune.choice([{"name": "sgd", "momentum": tune.uniform(0, 1)}, {"name": "adam"}]),
    }
    study = search(space, num_samples=8, seed=1).to_optuna()
    (x, n, kind) = (study.trials[0].distributions[name] for name in ("x", "n", "kind"))
    assert (x.low, x.high, x.log) == (1e-3, 1.0, True)
    assert (n.low, n.high) == (1, 4)
    assert kind.choices == ("a", None, "['tuple']")
    with_momentum = [trial for trial in study.trials if "opt/momentum" in trial.params]
    assert all(trial.params["opt/name"] == "sgd" for trial in with_momentum)
    assert {trial.params["opt/name"] for trial in study.trials} == {"sgd", "adam"}


def test_several_objectives():
    grid = search({"x": tune.grid_search([1, 2])})
    study = grid.to_optuna(["loss", "eval/acc"], ["min", "max"])
    assert [trial.values for trial in study.trials] == [pytest.approx([x / 3, 0.5]) for x in (1, 2)]
    with pytest.raises(ValueError, match="as many modes as metrics"):
        grid.to_optuna(["loss", "size"], ["min"])
    with pytest.raises(ValueError, match="mode='upward'"):
        grid.to_optuna("loss", "upward")


@pytest.mark.parametrize("kind", ["history", "parallel", "importance", "curves"])
@pytest.mark.parametrize("ending", [".png", ".html"])
def test_every_kind_of_picture_is_drawn(kind: str, ending: str, tmp_path: Path):
    from PIL import Image

    space = {"x": tune.uniform(0, 2), "unused": tune.uniform(0, 1)}
    grid = search(space, num_samples=6, reuse_workers=True, scheduler=ASHAScheduler(max_t=3))
    file = grid.plot(kind, tmp_path / f"picture{ending}")
    if ending == ".html":
        assert '"loss"' in file.read_text()
    else:
        with Image.open(file) as image:
            colours = image.convert("RGB").getcolors(1 << 24)
        assert len(colours) > 10


def test_a_picture_that_cannot_be_drawn_is_refused_with_a_reason(tmp_path: Path):
    grid = search({"x": tune.grid_search([1])})
    with pytest.raises(ValueError, match="choose one of 'history', 'parallel', 'importance', 'curves'"):
        grid.plot("pie", tmp_path / "a.png")
    with pytest.raises(ValueError, match=r"End its name in \.png, \.svg, \.pdf or \.html"):
        grid.plot("history", tmp_path / "a.bmp")
    with pytest.raises(ValueError, match="from two trials with a result on; there are 1"):
        grid.plot("importance", tmp_path / "a.png")
    with pytest.raises(ValueError, match="nothing to draw: no trial has a result"):
        search({"x": tune.grid_search([3])}).plot("history", tmp_path / "a.png")
