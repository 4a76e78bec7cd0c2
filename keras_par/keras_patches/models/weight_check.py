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

# What an epoch's end looks at: so many variables, and of those of more bytes one of so many parts.
MOST, LARGE, NUM_PARTS = 32, 2**20, 8


def require_same_weights(binding: Binding, model: keras.Model, epoch: int | None = None) -> None:
    """Compares the ranks' trainable variables by a sum of their bits; of divided ones those of equal shards.

    Costs one all-gather of 8 bytes a variable, and reading what it looks at once.

    Args:
        binding: the model's.
        model: whose variables they are.
        epoch: that has ended, for a quick look at some of many variables and a part of large ones, at others with each
            epoch. None for all.

    Raises:
        RuntimeError: on every rank, if a variable differs.
    """
    variables = model.trainable_variables
    if not variables or not binding.shares_weights:
        return
    part = None
    if epoch is not None:
        count = min(MOST, len(variables))
        turn, begin = divmod(epoch * count, len(variables))
        variables, part = [*variables, *variables][begin : begin + count], turn % NUM_PARTS
    parted = first_parted(binding, variables, marks(variables, part))
    # Numbers that are none have many forms, of which any may come out of a sum.
    if parted and (parted := first_parted(binding, variables, marks(variables, part, without_nan=True))):
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


def marks(variables: list[keras.Variable], part: int | None = None, without_nan: bool = False) -> np.ndarray:
    """For each variable the sum of its values' bits, or of those of a part of its values, int64."""
    with local_view():
        return np.array([mark(tf.convert_to_tensor(each.value), part, without_nan) for each in variables], "int64")


def mark(value: tf.Tensor, part: int | None, without_nan: bool) -> np.int64:
    size = value.shape.num_elements()
    if part is not None and size * value.dtype.size > LARGE:
        value = tf.reshape(value, [-1])[part * size // NUM_PARTS : (part + 1) * size // NUM_PARTS]
    numbers = np.asarray(value).reshape(-1)
    if without_nan:
        numbers = np.where(np.isnan(numbers), np.zeros([], numbers.dtype), numbers)
    octets = numbers.view("uint8")
    end = len(octets) // 8 * 8
    return np.add.reduce(octets[:end].view("int64")) ^ np.add.reduce(octets[end:], dtype="int64")


def first_parted(binding: Binding, variables: list[keras.Variable], own: np.ndarray) -> tuple[int, int, int] | None:
    """The first variable, by its place, that a rank holds otherwise than the first rank that should hold the same."""
    everywhere = binding.communicator.all_gather(tf.constant(own[np.newaxis]), "kp.weights").numpy()
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
