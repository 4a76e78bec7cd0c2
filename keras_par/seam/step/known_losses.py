"""Tells, while a step is traced, whether its losses are what Keras's own give, so that no look at numbers is needed."""

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from keras_par.seam.rows.row_dims import is_symbolic
from keras_par.sharding.step import LossUnknown, Step

# Through which a loss stays what it is, if the other inputs are numbers that no row has a part in.
LINEAR = ("Identity", "Cast", "Add", "AddV2", "AddN", "Sub", "Mul", "Neg", "RealDiv", "Sum", "Pack", "Reshape")
NUMBERS = ("Const", "ReadVariableOp")


def require_known(step: Step, losses: Iterable[Any]) -> None:
    """Ends the trace of a step whose losses must be known, if a scalar one is not what Keras's own losses gave.

    Raises:
        LossUnknown: there is such a loss.
    """
    if step.first_trace is None:
        return
    given = {id(loss) for loss in step.handled if loss.shape.rank == 0}
    floats = [each for each in losses if is_symbolic(each) and each.dtype.is_floating]
    if not all(each.shape.rank or is_made_of(each, given) for each in floats):
        raise LossUnknown


def is_made_of(tensor: tf.Tensor, given: set[int]) -> bool:
    """True if a tensor is a sum of `given` scalars, by their ids, times and plus what no row has a part in."""
    if id(tensor) in given or is_number(tensor):
        return True
    inputs, kind = list(tensor.op.inputs), tensor.op.type
    if kind not in LINEAR or is_large(tensor):
        return False
    if kind == "Mul":
        return any(map(is_number, inputs)) and all(is_made_of(each, given) for each in inputs)
    if kind == "RealDiv":
        return is_made_of(inputs[0], given) and is_number(inputs[1])
    return all(is_made_of(each, given) for each in inputs)


def is_number(tensor: tf.Tensor) -> bool:
    """True if no row has a part in a tensor: it is made of constants and variables."""
    operation = tensor.op
    if operation.type in NUMBERS:
        return True
    is_pure = bool(operation.inputs) and not operation.op_def.is_stateful
    return is_pure and all(map(is_number, operation.inputs))


def is_large(tensor: tf.Tensor) -> bool:
    """True for more than a scalar, or some of them in a row."""
    return tensor.shape.rank is None or tensor.shape.rank > 1
