"""Tells, from a trace of a step's forward pass alone, whether its losses need a look at numbers."""

import logging
import random
from typing import Any

import numpy as np
import tensorflow as tf

from keras_par.seam.call.first_batch import NONE
from keras_par.seam.call.program import Program
from keras_par.seam.call.row_probe import LoneCommunicator, functions_inlined
from keras_par.seam.feed.shards import KINDS
from keras_par.sharding.step import Probe, Step

# Through which a loss stays what it is, if the other inputs are numbers that no row has a part in.
LINEAR = ("Identity", "Cast", "Add", "AddV2", "AddN", "Sub", "Mul", "Neg", "RealDiv", "Sum", "Pack", "Reshape")
NUMBERS = ("Const", "ReadVariableOp")

logger = logging.getLogger("keras_par")


def are_known(program: Program, spec: Any) -> bool:
    """True if a training step takes gradients of nothing but what Keras's own losses give, which need no look.

    The step is traced once more, without its gradients and its update, and nothing of it runs.

    Args:
        program: of the step.
        spec: the type of its batches, or of shards of them.
    """
    batch = spec.batch if isinstance(spec, KINDS) else spec
    leaves = [leaf for leaf in tf.nest.flatten(batch) if leaf is not None and not isinstance(leaf, NONE)]
    if not all(isinstance(leaf, tf.TensorSpec) for leaf in leaves):
        return False
    states = random.getstate(), np.random.get_state()
    found: list[bool] = []
    try:
        with functions_inlined():
            tf.compat.v1.wrap_function(lambda *given: found.append(traced(program, batch, given)), leaves)
    except Exception as error:  # a step that cannot be traced so is looked at
        logger.debug("keras-par: the losses of '%s' are not known: %r", program.model.name, error)
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
    return bool(found) and found[0]


def traced(program: Program, structure: Any, given: tuple) -> bool:
    """True if the losses are known of a step with these leaves, in the graph being traced."""
    left = iter(given)
    flat = [next(left) if isinstance(leaf, tf.TensorSpec) else None for leaf in tf.nest.flatten(structure)]
    batch = tf.nest.pack_sequence_as(structure, flat)
    rows = tf.shape(given[0], tf.int64)[0]
    alone, probe = LoneCommunicator(), Probe(with_gradients=False)
    step = Step(program.binding, rows, rows, thin=False, captured=[], probe=probe, communicator=alone)
    with program.binding.scope(), step.current():
        program.step_function(batch)
    handled = {id(loss) for loss in probe.handled if loss.shape.rank == 0}
    return not alone.asked_by_ops and all(is_made_of(loss, handled) for loss in probe)


def is_made_of(tensor: tf.Tensor, handled: set[int]) -> bool:
    """True if a tensor is a sum of `handled` scalars, by their ids, times and plus what no row has a part in."""
    if id(tensor) in handled or is_number(tensor):
        return True
    inputs, kind = list(tensor.op.inputs), tensor.op.type
    if kind not in LINEAR or is_large(tensor):
        return False
    if kind == "Mul":
        return any(map(is_number, inputs)) and all(is_made_of(each, handled) for each in inputs)
    if kind == "RealDiv":
        return is_made_of(inputs[0], handled) and is_number(inputs[1])
    return all(is_made_of(each, handled) for each in inputs)


def is_number(tensor: tf.Tensor) -> bool:
    """True if no row has a part in a tensor: it is made of constants and variables."""
    is_linear = tensor.op.type in LINEAR and not is_large(tensor)
    return tensor.op.type in NUMBERS or (is_linear and all(map(is_number, tensor.op.inputs)))


def is_large(tensor: tf.Tensor) -> bool:
    """True for more than a scalar, or some of them in a row."""
    return tensor.shape.rank is None or tensor.shape.rank > 1
