"""Looks at a model that is not trained: traces its step from the types of inputs, and takes back that it was built."""

import collections
import contextlib
from collections.abc import Iterator, Sequence

import keras
import tensorflow as tf
from keras.src.backend.common import global_state

from keras_par.base import generators
from keras_par.keras_patches.coordination.prepare import build, divide_followers, divide_state
from keras_par.keras_patches.inputs.shards import EvenShard
from keras_par.keras_patches.models.binding import bound
from keras_par.keras_patches.models.layer_recompute import recompute_built
from keras_par.keras_patches.step.metrics import layers
from keras_par.keras_patches.trainer.step_program import Direct
from keras_par.keras_patches.variables.layouts import path_of, require_matches

NAMES = "object_name_uids"  # where Keras counts the names that it gives


def trace_training_step(model: keras.Model, batch_size: int, sizes: Sequence[int] = ()) -> None:
    """Traces one step on this rank's rows of a global batch, which notes its collectives in the model's binding.

    Targets have the types that the loss wants for the outputs: class numbers for sparse losses, else the outputs'.

    Args:
        model: bound to a strategy.
        batch_size: rows on all ranks together.
        sizes: of the inputs' dims that the model leaves open, in their order.

    Raises:
        ValueError: the batch axis does not divide the batch, or a layout map has a pattern for nothing.
    """
    binding = bound(model)
    assert binding is not None
    if batch_size % binding.num_shards:
        raise ValueError(
            f"keras-par: a batch of {batch_size} rows cannot be cut evenly into {binding.num_shards}: give another "
            "--batch-size."
        )
    batch = spec_of(model, batch_size // binding.num_shards, sizes)
    with binding.scope():
        divide_followers(model, binding, batch)
        divide_state(model, binding, batch)
        build(model, batch, only_predict=False)
    require_matches(binding.strategy, [path_of(layer) for layer in layers(model)])
    recompute_built(model, binding.strategy, binding.options.recompute)
    program = Direct(model, binding, model.train_step)
    tf.function(program.__call__, autograph=False).get_concrete_function(EvenShard(batch, tf.TensorSpec([], tf.bool)))


def spec_of(model: keras.Model, num_rows: int, sizes: Sequence[int] = ()) -> tuple:
    """The types of x and y for a batch; see `trace_training_step`.

    Raises:
        ValueError: the model does not tell the shapes of its inputs, or leaves another number of dims open.
    """
    graph = getattr(model, "_functional", None) or model  # what a Sequential is made of
    if not hasattr(graph, "_inputs_struct"):
        raise ValueError(
            f"keras-par: model '{model.name}' does not tell the shapes of its inputs: give it Inputs, by Sequential or "
            "the functional API."
        )

    def spec(tensor):
        return tf.TensorSpec([num_rows, *tensor.shape[1:]], tensor.dtype)

    inputs, outputs = graph._inputs_struct, graph._outputs_struct
    if sizes:
        inputs = filled(inputs, sizes)
        outputs = model.compute_output_spec(inputs)
    x, y = (keras.tree.map_structure(spec, each) for each in (inputs, outputs))
    if is_sparse(model):
        y = keras.tree.map_structure(lambda spec: tf.TensorSpec(spec.shape[:-1], tf.int32), y)
    return x, y


def filled(inputs, sizes: Sequence[int]):
    """Symbols of inputs whose open dims, but for the rows, have these sizes.

    Raises:
        ValueError: there are more or fewer of them.
    """
    num_open = sum(size is None for each in keras.tree.flatten(inputs) for size in each.shape[1:])
    if num_open != len(sizes):
        raise ValueError(
            f"keras-par: the input shape has {len(sizes)} size(s), but the model's inputs leave {num_open} open "
            "besides the rows: give one for each."
        )
    left = iter(sizes)

    def fill(symbol):
        shape = [next(left) if size is None else size for size in symbol.shape[1:]]
        return keras.KerasTensor((None, *shape), symbol.dtype)

    return keras.tree.map_structure(fill, inputs)


def is_sparse(model: keras.Model) -> bool:
    """True if the loss takes class numbers."""
    loss = model.loss
    name = loss if isinstance(loss, str) else getattr(loss, "name", getattr(loss, "__name__", ""))
    return "sparse" in str(name)


@contextlib.contextmanager
def as_if_unbuilt() -> Iterator[None]:
    """After it a model gets the names, and its weights the seeds, that they would have got without it."""
    names = global_state.get_global_attribute(NAMES, default={})
    before = dict(names)
    try:
        with generators.kept():
            yield
    finally:
        global_state.set_global_attribute(NAMES, collections.defaultdict(int, before))
