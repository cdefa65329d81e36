"""Batches as a data set of TensorFlow."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from shoal._runtime.requirements import require


def dataset(epoch: Callable[[], Iterator[Mapping[str, Any]]], like: Mapping[str, Any]) -> Any:
    """Return a ``tf.data.Dataset``, each of whose iterations is an epoch, of batches like the one that is given."""
    require("tensorflow", extra="tensorflow", tested="2.16", trainer="DataShard.to_tf()")
    import tensorflow as tf

    signature = {name: _spec(tf, name, np.asarray(column)) for name, column in like.items()}
    return tf.data.Dataset.from_generator(lambda: map(dict, epoch()), output_signature=signature)


def _spec(tf: Any, name: str, column: np.ndarray[Any, Any]) -> Any:
    if column.dtype.kind in "USO" and all(isinstance(value, (str, bytes)) for value in column.flat):
        return tf.TensorSpec((None, *column.shape[1:]), tf.string, name=name)
    if column.dtype.kind in "OMmV":
        raise TypeError(f"the column {name!r} holds {type(column.flat[0]).__name__}, of which no tensor is made")
    return tf.TensorSpec((None, *column.shape[1:]), column.dtype, name=name)
