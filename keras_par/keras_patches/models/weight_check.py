"""Notices ranks whose weights have parted, which the results would not show."""

import logging

import keras
import numpy as np
import tensorflow as tf

from keras_par.comm.agreed import AgreedRuntimeError
from keras_par.keras_patches.models.binding import Binding
from keras_par.sharding.mesh import RankMesh
from keras_par.sharding.variable_views import is_sharded, local_view

logger = logging.getLogger("keras_par")

INTEGERS = {1: tf.int8, 2: tf.int16, 4: tf.int32, 8: tf.int64}


def require_same_weights(binding: Binding, model: keras.Model) -> None:
    """Compares the ranks' trainable variables by a sum of their bits; of divided ones those of equal shards.

    Costs one all-gather of 8 bytes a variable, and reading the variables once.

    Raises:
        RuntimeError: on every rank, if a variable differs.
    """
    variables = model.trainable_variables
    if not variables or not binding.shares_weights:
        return
    parted = first_parted(binding, variables, marks(variables))
    # Numbers that are none have many forms, of which any may come out of a sum.
    if parted and (parted := first_parted(binding, variables, marks(variables, without_nan=True))):
        place, rank, first = parted
        raise AgreedRuntimeError(
            f"keras-par: the ranks' weights have parted: '{variables[place].path}' of model '{model.name}' is not the "
            f"same on rank {rank} as on rank {first}, because something on one rank changed it by other numbers than "
            "on the others (an assignment in a train_step that is not made of all ranks' gradients, or a callback): "
            "change weights on all ranks alike."
        )


def allow_other_weights(binding: Binding, model: keras.Model) -> None:
    """Where ranks begin with other weights because the strategy leaves them alone, says so, and lets it be.

    Costs one all-gather of 8 bytes a variable.
    """
    variables = model.trainable_variables
    parted = first_parted(binding, variables, marks(variables)) if variables else None
    if parted:
        binding.shares_weights = False
        if binding.communicator.rank == 0:
            logger.warning(
                "keras-par: the ranks begin with other weights, as broadcast_variables=False lets them: '%s' of model "
                "'%s' is not the same on rank %d as on rank %d",
                variables[parted[0]].path,
                model.name,
                *parted[1:],
            )


def marks(variables: list[keras.Variable], without_nan: bool = False) -> tf.Tensor:
    """For each variable the sum of its values' bits, int64."""
    with local_view():
        return tf.stack([mark(tf.convert_to_tensor(variable.value), without_nan) for variable in variables])


def mark(value: tf.Tensor, without_nan: bool) -> tf.Tensor:
    if without_nan and value.dtype.is_floating:
        value = tf.where(tf.math.is_nan(value), tf.zeros([], value.dtype), value)
    if value.dtype.is_floating:
        value = tf.bitcast(value, INTEGERS[value.dtype.size])
    return tf.reduce_sum(tf.cast(value, tf.int64))


def first_parted(binding: Binding, variables: list[keras.Variable], own: tf.Tensor) -> tuple[int, int, int] | None:
    """The first variable, by its place, that a rank holds otherwise than the first rank that should hold the same."""
    everywhere = binding.communicator.all_gather(own[tf.newaxis], "kp.weights").numpy()
    if (everywhere == everywhere[0]).all() and not any(map(is_sharded, variables)):
        return None
    for place, variable in enumerate(variables):
        firsts: dict[tuple, int] = {}
        for rank in range(len(everywhere)):
            first = firsts.setdefault(shard_number(variable, binding.mesh, rank), rank)
            if not np.array_equal(everywhere[rank][place], everywhere[first][place]):
                return place, rank, first
    return None


def shard_number(variable: keras.Variable, mesh: RankMesh | None, rank: int) -> tuple:
    """Which shard of a variable a rank holds."""
    if mesh is None or not is_sharded(variable):
        return ()
    place = mesh.plan.coordinates(rank)
    return tuple(place[axis] for axis in variable.axes if axis is not None)
