"""What the ranks do together before step 1: build, compare, and start from rank 0's state."""

import keras
import tensorflow as tf
from keras import tree
from keras.src import backend

from keras_par.comm.agreement import exchange
from keras_par.comm.broadcast import broadcast_variables
from keras_par.comm.communicator import Communicator
from keras_par.plan.fingerprint import canonical_names, first_difference
from keras_par.seam.binding import Binding
from keras_par.seam.metrics import layers
from keras_par.seam.shards import KINDS
from keras_par.seam.state import is_partial, state_of


def prepare(model: keras.Model, binding: Binding, element_spec, only_predict: bool = False) -> None:
    """Builds what is not built, checks that the ranks train the same model, and broadcasts rank 0's state.

    Args:
        model: compiled under a strategy.
        binding: that strategy.
        element_spec: the type of a batch, with or without its row counts.
        only_predict: True if the batch has no targets, so that losses and metrics cannot be built from it.

    Costs two all-gathers of the variables' names, and one broadcast for each 64 MB of state.

    Raises:
        ValueError: on every rank, if the models differ in a name, a shape or a dtype.
    """
    communicator = binding.communicator
    build(model, element_spec, only_predict)
    variables = state_of(model)
    compare(communicator, model, variables)
    if binding.options.broadcast_variables:
        take_state_of_rank_0(communicator, variables, whole=not binding.prepared)
    separate_seeds(communicator, model)
    binding.prepared = not only_predict


def build(model: keras.Model, element_spec, only_predict: bool) -> None:
    """Creates the weights, metrics and optimizer slots that Keras would create while tracing the first step."""
    if isinstance(element_spec, KINDS):
        element_spec = element_spec.batch
    batch = tree.map_structure(without_rows, element_spec)
    compiled = [part for part in (model._compile_loss, model._compile_metrics) if part is not None]
    unbuilt = [part for part in compiled if not part.built]
    try:
        if only_predict:
            build_forward(model, batch)
        else:
            model._symbolic_build(data_batch=batch)
    except Exception:
        # A model whose own train_step does what Keras's would not, with a batch that its call or its loss does not
        # take, is used as far as it is built.
        if not model.weights:
            raise
        for part in unbuilt:
            part.built = False  # it says so halfway, and is built by the first step instead


def build_forward(model: keras.Model, batch) -> None:
    """Creates the weights of a model that is not built, from the types of its inputs."""
    if not all(layer.built for layer in model._flatten_layers()):
        x, _, _ = keras.utils.unpack_x_y_sample_weight(batch)
        inputs = tree.map_structure(lambda spec: keras.KerasTensor(spec.shape, spec.dtype.name), x)
        backend.compute_output_spec(model, inputs, training=False)


def without_rows(spec):
    """`spec` with an unknown number of rows; Keras needs shape and dtype of every input and no values."""
    return tf.TensorSpec([None, *spec.shape[1:]], spec.dtype) if hasattr(spec, "shape") else None


def compare(communicator: Communicator, model: keras.Model, variables: list[keras.Variable]) -> None:
    """Raises on every rank if the ranks' variables are not the same in name, shape and dtype."""
    names = canonical_names([variable.path for variable in variables])
    own = [[name, list(v.shape), v.dtype] for name, v in zip(names, variables, strict=True)]
    difference = first_difference(exchange(communicator, "kp.fingerprint", own, None))
    if difference:
        exchange(
            communicator,
            "kp.fingerprint.differs",
            None,
            f"the ranks built different models: in '{model.name}' {difference}: "
            "build the same model from the same arguments on every rank.",
        )


def take_state_of_rank_0(communicator: Communicator, variables: list[keras.Variable], whole: bool) -> None:
    """Gives all ranks rank 0's variables, except gradients that are being accumulated.

    Args:
        communicator: all ranks.
        variables: the same on every rank.
        whole: True if what rank 0 has accumulated, as from a file, is of all ranks, so that the others begin at zero.

    Costs one broadcast for each 64 MB.
    """
    broadcast_variables([v for v in variables if not is_partial(v)], communicator=communicator)
    if whole and communicator.rank != 0:
        for variable in filter(is_partial, variables):
            variable.assign(tf.zeros_like(variable.value))


def separate_seeds(communicator: Communicator, model: keras.Model) -> None:
    """Adds the rank to the seed of each of the model's random layers, so that ranks drop different units."""
    for layer in layers(model):
        for generator in layer._seed_generators:
            offset = tf.constant([communicator.rank, 0], generator.state.dtype)
            generator.state.assign(generator.state.value + offset)
