"""XGBoost's own training function in an XGBoostTrainer."""

import numpy as np
import ray.train
import xgboost
from ray.train import RunConfig, ScalingConfig
from ray.train.xgboost import RayTrainReportCallback, XGBoostTrainer


def train_func(config):
    rank = ray.train.get_context().get_world_rank()
    random = np.random.default_rng(rank)
    x = random.normal(size=(100, 3))
    data = xgboost.DMatrix(x, label=(x[:, 0] > 0).astype(int))
    xgboost.train(
        {"objective": "binary:logistic", "tree_method": "approx", "eta": config["eta"]},
        data,
        num_boost_round=5,
        evals=[(data, "train")],
        verbose_eval=False,
        callbacks=[RayTrainReportCallback(frequency=2)],
    )


result = XGBoostTrainer(
    train_func, train_loop_config={"eta": 0.3}, scaling_config=ScalingConfig(num_workers=2), run_config=RunConfig()
).fit()
model = RayTrainReportCallback.get_model(result.checkpoint)
print("done", model.num_boosted_rounds(), "train-logloss" in result.metrics)
