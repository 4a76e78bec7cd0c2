"""Lets steps read only those rows of a table that they look up, where Keras would have TensorFlow copy it whole.

Keras reads the whole variable and takes rows of that. A reading is free until the variable is updated by rows, as
sparse gradients do: from then on each reading is a copy (`copy_on_read_mode` in TensorFlow's resource_variable_ops.h).
"""

from typing import Any

import keras
import tensorflow as tf

from keras_par.sharding import step as steps
from keras_par.sharding.variable_views import is_sharded


def take(original):
    """Rows of a variable by TensorFlow's gathering from variables, with the same bits and the same kind of gradient.

    Only in `vectorized_map`, which does not know that operation, is it slower, and the gradient dense.
    """

    def replacement(x, indices, axis=None):
        table = table_of(x) if axis == 0 else None
        if table is None or isinstance(indices, (tf.SparseTensor, tf.RaggedTensor)):
            return original(x, indices, axis=axis)
        indices = tf.convert_to_tensor(indices)
        if indices.dtype not in (tf.int32, tf.int64):
            return original(x, indices, axis=axis)
        from_end = indices + tf.cast(table.shape[0], indices.dtype)
        return tf.gather(table, tf.where(indices < 0, from_end, indices))

    return replacement


def table_of(x: Any) -> tf.Variable | None:
    """TensorFlow's variable in one of Keras's, if a step under way reads it as it is: whole, and in its own dtype."""
    if steps.current() is None or not isinstance(x, keras.Variable) or is_sharded(x):
        return None
    value = x.value
    return value if isinstance(value, tf.Variable) else None
