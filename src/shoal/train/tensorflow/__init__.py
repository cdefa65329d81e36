"""TensorFlow and Keras on many workers."""

from __future__ import annotations

from typing import Any

from shoal.train.tensorflow.trainer import TensorflowConfig, TensorflowTrainer

__all__ = ["TensorflowConfig", "TensorflowTrainer", "prepare_dataset_shard"]


def prepare_dataset_shard(tf_dataset_shard: Any) -> Any:
    """Return a ``tf.data.Dataset`` that TensorFlow does not share out: it is this worker's share already."""
    import tensorflow as tf

    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return tf_dataset_shard.with_options(options)
