"""XGBoost and LightGBM: two workers train what one does, a killed worker is made up for, and mistakes are told."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal import train, tune
from shoal.train import FailureConfig, RunConfig, ScalingConfig
from shoal.train.lightgbm import LightGBMTrainer
from shoal.train.xgboost import XGBoostConfig, XGBoostTrainer

ROUNDS = 12


def table() -> dict[str, np.ndarray[Any, Any]]:
    """Real data: which tumours are malignant, by 30 measurements."""
    from sklearn.datasets import load_breast_cancer

    data = load_breast_cancer()
    columns = {f"f{number}": data.data[:, number] for number in range(data.data.shape[1])}
    return {**columns, "y": data.target.astype(float)}


def boost_with_xgboost(config: dict[str, Any]) -> None:
    import xgboost

    from shoal.train.xgboost import ReportCallback, prepare_dmatrix

    class DieOnce(xgboost.callback.TrainingCallback):
        def after_iteration(self, model, epoch, evals_log):
            die_once(config, epoch)
            return False

    rows = prepare_dmatrix(train.get_dataset_shard("train"), label="y")
    start, model = train.get_checkpoint(), None
    if start is not None:
        model = ReportCallback.get_model(start)
    done = model.num_boosted_rounds() if model is not None else 0
    xgboost.train(
        {"objective": "binary:logistic", "eval_metric": ["logloss", "error"], "max_depth": 3, "nthread": 1},
        rows,
        num_boost_round=config.get("rounds", ROUNDS) - done,
        evals=[(rows, "train")],
        xgb_model=model,
        verbose_eval=False,
        callbacks=[ReportCallback(frequency=config.get("frequency", 0)), DieOnce()],
    )


def boost_with_lightgbm(config: dict[str, Any]) -> None:
    import lightgbm

    from shoal.train.lightgbm import ReportCallback, get_network_params

    def die(env):
        die_once(config, env.iteration)

    frame = train.get_dataset_shard("train").materialize("pandas")
    labels = frame.pop("y")
    rows = lightgbm.Dataset(frame, labels)
    start, model = train.get_checkpoint(), None
    if start is not None:
        model = ReportCallback.get_model(start)
    done = model.num_trees() if model is not None else 0
    params = {
        "objective": "binary",
        "metric": ["binary_logloss", "binary_error"],
        "tree_learner": "data",
        "pre_partition": True,
        "num_leaves": 7,
        "num_threads": 1,
        "verbose": -1,
        **get_network_params(),
    }
    lightgbm.train(
        params,
        rows,
        config.get("rounds", ROUNDS) - done,
        valid_sets=[rows],
        valid_names=["train"],
        init_model=model,
        callbacks=[ReportCallback(frequency=config.get("frequency", 0)), die],
    )


def die_once(config: dict[str, Any], number: int) -> None:
    if config.get("dies") and number >= 5 and train.get_context().get_world_rank() == 1:
        mark = Path(config["dies"])
        if not mark.exists():
            mark.touch()
            os._exit(3)


KINDS = {
    "xgboost": (XGBoostTrainer, boost_with_xgboost, "train-logloss", "train-error"),
    "lightgbm": (LightGBMTrainer, boost_with_lightgbm, "train-binary_logloss", "train-binary_error"),
}


def fit(kind: str, workers: int, config: dict[str, Any] | None = None, **run: Any) -> train.Result:
    trainer, function, *_ = KINDS[kind]
    return trainer(
        function,
        train_loop_config=config or {},
        datasets={"train": table()},
        scaling_config=ScalingConfig(num_workers=workers),
        run_config=RunConfig(verbose=0, log_to_driver=None, **run),
    ).fit()


def predicted(kind: str, result: train.Result) -> Any:
    features = np.stack([column for name, column in table().items() if name != "y"], axis=1)
    if kind == "xgboost":
        import xgboost

        from shoal.train.xgboost import ReportCallback

        names = [name for name in table() if name != "y"]
        return ReportCallback.get_model(result.checkpoint).predict(xgboost.DMatrix(features, feature_names=names))
    from shoal.train.lightgbm import ReportCallback as Other

    return Other.get_model(result.checkpoint).predict(features)


@pytest.mark.parametrize("kind", list(KINDS))
def test_two_workers_train_what_one_trains(kind: str):
    error = KINDS[kind][3]
    one, two = fit(kind, 1), fit(kind, 2)
    labels = table()["y"]
    for result in (one, two):
        assert list(result.metrics_dataframe["training_iteration"]) == list(range(1, ROUNDS + 2))
        assert result.metrics[error] < 0.03
        assert len(result.best_checkpoints) == 1
        assert ((predicted(kind, result) > 0.5) == labels).mean() > 0.97
    # The workers agree on the borders of bins from their own rows, so that these differ a little.
    assert np.abs(predicted(kind, one) - predicted(kind, two)).mean() < 0.03
    assert np.corrcoef(predicted(kind, one), predicted(kind, two))[0, 1] > 0.98


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_killed_worker_is_made_up_for_from_the_booster_in_the_checkpoint(kind: str, tmp_path: Path):
    undisturbed = fit(kind, 2, {"frequency": 2})
    config = {"frequency": 2, "dies": str(tmp_path / "mark")}
    result = fit(kind, 2, config, failure_config=FailureConfig(max_failures=1))
    assert len(result.attempts) == 2
    assert result.attempts[1].checkpoint in (2, 4)
    assert np.abs(predicted(kind, result) - predicted(kind, undisturbed)).mean() < 0.02
    loss = KINDS[kind][2]
    assert result.metrics[loss] == pytest.approx(undisturbed.metrics[loss], rel=0.1)


def test_boosters_are_searched():
    grid = tune.Tuner(
        XGBoostTrainer(boost_with_xgboost, datasets={"train": table()}, train_loop_config={}),
        param_space={"rounds": tune.grid_search([1, 8])},
        tune_config=tune.TuneConfig(metric="train-logloss", mode="min"),
        run_config=RunConfig(verbose=0, log_to_driver=None),
    ).fit()
    assert grid.get_best_result().config["rounds"] == 8


def test_mistakes_are_told():
    import xgboost

    from shoal.train.xgboost import ReportCallback

    with pytest.raises(ValueError, match="frequency=-1: give a number of rounds"):
        ReportCallback(frequency=-1)
    with pytest.raises(ValueError, match="there is only 'rabit'"):
        XGBoostConfig("mpi")
    with pytest.raises(ValueError, match="metrics has 'valid-auc', but evaluated are: train-logloss"):
        ReportCallback(metrics="valid-auc").after_iteration(xgboost.Booster(), 0, {"train": {"logloss": [0.5]}})
