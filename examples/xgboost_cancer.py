"""Train gradient boosted trees of XGBoost with two workers, each of which has half of the rows."""

from __future__ import annotations

import sys

import xgboost
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split

from shoal import train
from shoal.train import DataConfig, FailureConfig, RunConfig, ScalingConfig
from shoal.train.xgboost import ReportCallback, XGBoostTrainer, prepare_dmatrix


def train_func(config: dict) -> None:
    rows = prepare_dmatrix(train.get_dataset_shard("train"), label="target")
    test = prepare_dmatrix(train.get_dataset_shard("test"), label="target")
    checkpoint = train.get_checkpoint()
    booster = ReportCallback.get_model(checkpoint) if checkpoint else None
    done = booster.num_boosted_rounds() if booster else 0
    xgboost.train(
        {"objective": "binary:logistic", "eval_metric": ["logloss", "error"], "max_depth": 3, "eta": 0.1},
        rows,
        num_boost_round=config["rounds"] - done,
        evals=[(rows, "train"), (test, "test")],
        verbose_eval=False,
        xgb_model=booster,
        callbacks=[ReportCallback(frequency=10)],
    )


def make_trainer(function=train_func, rounds: int = 80, **run) -> XGBoostTrainer:
    frame = load_breast_cancer(as_frame=True).frame
    rows, test = train_test_split(frame, test_size=0.25, random_state=0, stratify=frame["target"])
    return XGBoostTrainer(
        function,
        train_loop_config={"rounds": rounds},
        datasets={"train": rows, "test": test},
        dataset_config=DataConfig(datasets_to_split=["train"]),
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(failure_config=FailureConfig(max_failures=1), **run),
    )


if __name__ == "__main__":
    result = make_trainer().fit()
    print(f"test error: {result.metrics['test-error']:.3f}")
    sys.exit(result.metrics["test-error"] > 0.06)
