"""What the ranks do together before step 1: build, compare, and start from rank 0's state."""

import contextlib

import keras
import tensorflow as tf
from keras import tree
from keras.src import backend
from keras.src.backend.common import global_state
from keras.src.random.seed_generator import GLOBAL_SEED_GENERATOR

from keras_par.comm.agreed import AgreedValueError
from keras_par.comm.broadcast import broadcast_variables
from keras_par.comm.communicator import Communicator, gather_or_raise
from keras_par.keras_patches.coordination.metric_probe import MetricProbe
from keras_par.keras_patches.coordination.zero_state import lay_out_state
from keras_par.keras_patches.inputs.shards import KINDS
from keras_par.keras_patches.models.binding import Binding
from keras_par.keras_patches.models.compile_options import settings_of
from keras_par.keras_patches.models.layer_recompute import recompute_built
from keras_par.keras_patches.models.layout_propagation import propagate
from keras_par.keras_patches.models.model_state import is_partial, state_of
from keras_par.keras_patches.models.summary import announce
from keras_par.keras_patches.models.weight_check import allow_other_weights
from keras_par.keras_patches.step.metrics import layers, row_state
from keras_par.keras_patches.variables.layouts import path_of, require_matches
from keras_par.plan.fingerprint import canonical_names, first_difference, first_unequal
from keras_par.sharding.variable_views import is_sharded, local_view, sharded


def prepare(model: keras.Model, binding: Binding, element_spec, only_predict: bool = False) -> None:
    """Builds what is not built, checks that the ranks train the same model, and broadcasts rank 0's state.

    Args:
        model: compiled under a strategy.
        binding: that strategy.
        element_spec: the type of a batch, with or without its row counts.
        only_predict: True if the batch has no targets, so that losses and metrics cannot be built from it.

    Costs two all-gathers of the variables' names, one all-reduce, and one broadcast for each 16 MiB of state.

    Raises:
        ValueError: on every rank, if the models differ in a name, a shape, a dtype or a layout, or a layout map has
            a pattern for nothing.
    """
    with binding.scope():
        divide_followers(model, binding, element_spec)
        divide_state(model, binding, element_spec)
        build(model, element_spec, only_predict)
    of_rows = row_state(model)
    variables = [variable for variable in state_of(model) if id(variable) not in of_rows]
    compare(binding, model, variables)
    if not binding.announced:
        announce(model, binding)
    require_matches(binding.strategy, [path_of(layer) for layer in layers(model)])
    recompute_built(model, binding.strategy, binding.options.recompute)
    if binding.options.broadcast_variables:
        take_state_of_rank_0(binding, variables, whole=not binding.prepared)
        share_global_seed(binding.communicator)
    elif not binding.prepared:
        allow_other_weights(binding, model)
    if binding.metric_probe is None and not only_predict:
        binding.metric_probe = MetricProbe(model, binding)
    binding.prepared = not only_predict


def divide_followers(model: keras.Model, binding: Binding, element_spec) -> None:
    """Divides the variables that follow from the layout map, where the strategy says so, as `propagate` does."""
    if not binding.options.propagate or binding.prepared:
        return
    batch = batch_spec(element_spec)
    build_forward(model, batch)
    propagate(model, binding, keras.utils.unpack_x_y_sample_weight(batch)[0])


def divide_state(model: keras.Model, binding: Binding, element_spec) -> None:
    """Lays out the optimizers' state before it is made, once the model's weights are."""
    if binding.prepared:
        return
    with contextlib.suppress(Exception):  # which `build` deals with
        build_forward(model, batch_spec(element_spec))
    lay_out_state(model, binding)


def batch_spec(element_spec):
    """The type of a batch, for any number of rows."""
    batch = element_spec.batch if isinstance(element_spec, KINDS) else element_spec
    return tree.map_structure(symbol, batch)


def build(model: keras.Model, element_spec, only_predict: bool) -> None:
    """Creates the weights, metrics and optimizer slots that Keras would create while tracing the first step."""
    batch = batch_spec(element_spec)
    compiled = [part for part in (model._compile_loss, model._compile_metrics) if part is not None]
    unbuilt = [part for part in compiled if not part.built]
    try:
        if only_predict:
            build_forward(model, batch)
        else:
            build_compiled(model, batch, unbuilt)
    except Exception:
        # A model whose own train_step does what Keras's would not, with a batch that its call or its loss does not
        # take, is used as far as it is built.
        if not model.weights:
            raise
        for part in unbuilt:
            part.built = False  # it says so halfway, and is built by the first step instead


def build_forward(model: keras.Model, batch) -> None:
    """Creates the weights of a model that is not built, from symbols of its inputs."""
    if not is_built(model):
        x, _, _ = keras.utils.unpack_x_y_sample_weight(batch)
        backend.compute_output_spec(model, x, training=False)


def build_compiled(model: keras.Model, batch, unbuilt: list) -> None:
    """Creates weights, optimizer slots, and the state of losses and metrics in `unbuilt`, from symbols of a batch.

    Keras's own function is for dense tensors only. With losses and metrics built it is left with the optimizer.
    """
    if unbuilt or not is_built(model):
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
        y_pred = backend.compute_output_spec(model, x, training=False)
        if model._compile_metrics in unbuilt:
            backend.compute_output_spec(model.compute_metrics, x, y, y_pred, sample_weight=sample_weight)
        if model._compile_loss in unbuilt:
            backend.compute_output_spec(model._compute_loss, x, y, y_pred, sample_weight, training=False)
    model._symbolic_build(data_batch=batch)


def is_built(model: keras.Model) -> bool:
    """True if no layer has to be built before its first call."""
    return all(layer.built for layer in model._flatten_layers())


def symbol(spec):
    """A symbol of the type `spec` with an unknown number of rows; a ragged one is dense, as Keras has it."""
    if not hasattr(spec, "shape"):
        return None
    sparse = isinstance(spec, tf.SparseTensorSpec)
    shape = [] if spec.shape.rank == 0 else [None, *spec.shape[1:]]
    return keras.KerasTensor(shape, spec.dtype.name, sparse=sparse)


def compare(binding: Binding, model: keras.Model, variables: list[keras.Variable]) -> None:
    """Raises on every rank if the ranks compiled the model differently, or its variables are not the same.

    Variables must agree in name, shape, dtype and layout, optimizers and losses in all that is no variable.
    Of variables that are divided, the whole initial values must be the same, too: no rank has another one's part.
    """
    communicator = binding.communicator
    names = canonical_names([variable.path for variable in variables])
    own = [[name, list(v.shape), kind_of(v)] for name, v in zip(names, variables, strict=True)]
    answers = gather_or_raise(communicator, "kp.fingerprint", {"settings": settings_of(model), "variables": own}, None)
    settings = [answer["settings"] for answer in answers]
    unequal = first_unequal(settings)
    if unequal:
        key, other = unequal
        raise AgreedValueError(
            f"keras-par: the ranks compiled model '{model.name}' differently: {key} is {settings[0].get(key)!r} on "
            f"rank 0 but {settings[other].get(key)!r} on rank {other}: give compile the same arguments on every rank."
        )
    difference = first_difference([answer["variables"] for answer in answers])
    if difference:
        raise AgreedValueError(
            f"keras-par: the ranks built different models: in '{model.name}' {difference}: "
            "build the same model from the same arguments on every rank."
        )
    divided = sharded(variables)
    if divided and not binding.prepared:
        heard = communicator.all_gather_object([variable.checksum for variable in divided], "kp.checksums")
        place = next((i for i, sums in enumerate(zip(*heard, strict=True)) if len(set(sums)) > 1), None)
        if place is not None:
            raise AgreedValueError(
                f"keras-par: the ranks gave variable '{divided[place].path}' of model '{model.name}' other initial "
                "values, of which each holds a part only: set the same seed on every rank by "
                "keras.utils.set_random_seed before the model is built, and load weights on all ranks."
            )


def kind_of(variable: keras.Variable) -> str:
    """Dtype and division."""
    return f"{variable.dtype} divided by {variable.axes}" if is_sharded(variable) else variable.dtype


def take_state_of_rank_0(binding: Binding, variables: list[keras.Variable], whole: bool) -> None:
    """Gives all ranks rank 0's variables, except gradients that are being accumulated.

    Of a variable that is divided, the ranks that hold the same shard get that of the first of them.

    Args:
        binding: the model's.
        variables: the same on every rank.
        whole: True if what rank 0 has accumulated, as from a file, is of all ranks, so that the others begin at zero.

    Costs one broadcast for each 16 MiB.
    """
    own = [variable for variable in variables if not is_partial(variable)]
    broadcast_variables([v for v in own if not is_sharded(v)], communicator=binding.communicator)
    with local_view():
        mesh = binding.mesh
        for axis in mesh.plan.axis_names if mesh else ():
            alike = [variable for variable in sharded(own) if axis not in variable.axes]
            broadcast_variables(alike, communicator=mesh.along(axis))  # type: ignore[union-attr]
        if whole and binding.data.rank != 0:
            for variable in filter(is_partial, variables):
                variable.assign(tf.zeros_like(variable.value))


def share_global_seed(communicator: Communicator) -> None:
    """Gives all ranks rank 0's seed of what is drawn without one, if all have drawn so. Costs one all-reduce."""
    generator = global_state.get_global_attribute(GLOBAL_SEED_GENERATOR)
    if communicator.all_agree(generator is not None, "kp.global_seed"):
        broadcast_variables([generator.state], communicator=communicator)
