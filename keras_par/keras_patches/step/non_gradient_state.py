"""Makes the state that a training changes without gradients one for all ranks, and says where that cannot be right."""

import warnings

import keras
import numpy as np
import tensorflow as tf

from keras_par.comm.communicator import Communicator
from keras_par.keras_patches.step.metrics import is_float, layer_state, layers
from keras_par.sharding.variable_views import is_summed_backward, local_view

OURS = ("keras", "keras_hub")  # whose layers keep moving statistics, of which the mean over ranks is right
CLOSE = 1e-6  # relative; what float rounding explains of values that are the same


def average_state(communicator: Communicator, model: keras.Model) -> None:
    """Averages the state that training changes without gradients, such as moving means, over the ranks.

    Batch normalization that is not synchronized sees other rows on each rank; after this the ranks agree, as
    they do about weights. A variable whose `aggregation` is "only_first_replica" becomes rank 0's. The average is
    taken in float64, so that equal values stay as they are. What ranks with other rows divide among themselves, and
    what a stateful RNN keeps of a rank's rows, stays as each has it.

    Costs one all-reduce of that state; where layers of the user's own have some, one of two numbers for each.

    Warns:
        once, of variables of layers of the user's own that had parted and do not say how they belong together.
    """
    state = [variable for variable in layer_state(model) if is_float(variable) and not is_summed_backward(variable)]
    if communicator.size == 1:
        return
    with local_view():
        values = [numbers(variable).astype("float64") for variable in state]
        means: list[np.ndarray] = []
        if state:
            parts = [value.ravel() * first(communicator, v) for v, value in zip(state, values, strict=True)]
            [mean] = communicator.all_reduce([tf.constant(np.concatenate(parts))], "kp.state", "mean")
            pieces = np.split(mean.numpy(), np.cumsum([len(part) for part in parts])[:-1])
            means = [piece.reshape(value.shape) for piece, value in zip(pieces, values, strict=True)]
        warn_of_parted(communicator, model, dict(zip(map(id, state), zip(values, means, strict=True), strict=True)))
        for variable, value, mean in zip(state, values, means, strict=True):
            if not np.array_equal(value, mean):  # as synchronized layers have it, for which an assignment is saved
                variable.assign(tf.cast(mean, variable.dtype))


def numbers(variable: keras.Variable) -> np.ndarray:
    """A variable's value, where it lies if that is the host's memory."""
    return np.asarray(tf.convert_to_tensor(variable.value))


def first(communicator: Communicator, variable: keras.Variable) -> float:
    """What a value is multiplied by for the mean over ranks to be what the variable's `aggregation` says."""
    if variable.aggregation != "only_first_replica":
        return 1.0
    return float(communicator.size if communicator.rank == 0 else 0)


def warn_of_parted(communicator: Communicator, model: keras.Model, averaged: dict) -> None:
    """Warns of users' own variables that differ over ranks, of which an average means nothing if they hold rows."""
    own = [variable for variable in own_state(model) if id(variable) in averaged or is_integer(variable)]
    if not own or getattr(model, "_keras_par_parted", False):
        return
    marks = []
    for variable in own:
        if is_integer(variable):
            value = numbers(variable).ravel().astype("float64")
            number = float(value @ np.arange(1.0, value.size + 1))
            marks += [number, -number]
        else:
            value, mean = averaged[id(variable)]
            distance, largest = (np.max(np.abs(each), initial=0) for each in (value - mean, mean))
            marks += [float(distance > CLOSE * (largest + 1e-30))] * 2
    [most] = communicator.all_reduce([tf.constant(marks, tf.float64)], "kp.state.parted", "max")
    pairs = most.numpy().reshape(-1, 2)
    parted = [
        v.path for v, (high, low) in zip(own, pairs, strict=True) if (high != -low if is_integer(v) else high > 0)
    ]
    if parted:
        model._keras_par_parted = True
        warnings.warn(
            f"keras-par: '{parted[0]}' (one of {len(parted)}), which model '{model.name}' changes without gradients, "
            "has another value on each rank at the end of an epoch. Floats are averaged now, which is right for moving "
            "statistics only: fill a queue of rows by kp.ops.all_gather, or make the variable with "
            "aggregation='mean' or 'only_first_replica'.",
            stacklevel=2,
        )


def own_state(model: keras.Model) -> list[keras.Variable]:
    """State without gradients of layers that are not Keras's, whose variables do not say how ranks' belong together."""
    known = {id(variable) for variable in layer_state(model)}
    found: dict[int, keras.Variable] = {}
    for layer in layers(model):
        if type(layer).__module__.split(".")[0] not in OURS:
            found |= {id(v): v for v in layer._non_trainable_variables if id(v) in known and not is_summed_backward(v)}
    seeds = {id(generator.state) for layer in layers(model) for generator in layer._seed_generators}
    says = ("mean", "only_first_replica")
    return [v for key, v in found.items() if key not in seeds and v.aggregation not in says]


def is_integer(variable: keras.Variable) -> bool:
    return variable.dtype.startswith(("int", "uint"))
