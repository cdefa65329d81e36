"""Data sets, shared out among workers."""

from shoal.train.data.access import TRAIN_DATASET_KEY, get_dataset_shard
from shoal.train.data.config import DataConfig
from shoal.train.data.shard import DataShard
from shoal.train.data.sources import as_source

__all__ = ["TRAIN_DATASET_KEY", "DataConfig", "DataShard", "as_source", "get_dataset_shard"]
