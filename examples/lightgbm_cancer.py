"""Train gradient boosted trees of LightGBM with two workers, each of which has half of the rows."""

from __future__ import annotations

import sys

import lightgbm
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split

from shoal import train
from shoal.train import DataConfig, FailureConfig, RunConfig, ScalingConfig
from shoal.train.lightgbm import LightGBMTrainer, ReportCallback, get_network_params


def train_func(config: dict) -> None:
    rows, test = (_rows(train.get_dataset_shard(name).materialize("pandas")) for name in ("train", "test"))
    checkpoint = train.get_checkpoint()
    booster = ReportCallback.get_model(checkpoint) if checkpoint else None
    done = booster.num_trees() if booster else 0
    params = {
        "objective": "binary",
        "metric": ["binary_logloss", "binary_error"],
        "num_leaves": 4,
        "learning_rate": 0.2,
        "verbose": -1,
    }
    lightgbm.train(
        {**params, "tree_learner": "data", "pre_partition": True, **get_network_params()},
        rows,
        num_boost_round=config["rounds"] - done,
        valid_sets=[test],
        valid_names=["test"],
        init_model=booster,
        callbacks=[ReportCallback(frequency=10)],
    )


def _rows(frame) -> lightgbm.Dataset:
    return lightgbm.Dataset(frame.drop(columns="target"), frame["target"], free_raw_data=False)


def make_trainer(function=train_func, rounds: int = 40, **run) -> LightGBMTrainer:
    frame = load_breast_cancer(as_frame=True).frame
    rows, test = train_test_split(frame, test_size=0.25, random_state=0, stratify=frame["target"])
    return LightGBMTrainer(
        function,
        train_loop_config={"rounds": rounds},
        datasets={"train": rows, "test": test},
        dataset_config=DataConfig(datasets_to_split=["train"]),
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(failure_config=FailureConfig(max_failures=1), **run),
    )


if __name__ == "__main__":
    result = make_trainer().fit()
    print(f"test error: {result.metrics['test-binary_error']:.3f}")
    sys.exit(result.metrics["test-binary_error"] > 0.08)
