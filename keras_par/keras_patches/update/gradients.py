"""Takes gradients, weighs them by the ranks' rows and sums them over the ranks, by `sum_gradients` in the end.

In a step of the user's own that is done where gradients are computed. So whatever the step does to them (clips,
normalizes, adds up, assigns by hand) it does to what one process would have. Keras's own step leaves the sum to the
optimizer's update, see `optimizer.py`.
"""

import contextlib
import contextvars
import itertools
import warnings
from collections.abc import Collection
from typing import Any

import keras
import tensorflow as tf

from keras_par.comm import differentiable, reducer
from keras_par.comm.reducer import Gradient, scaled, values_of, with_values
from keras_par.keras_patches.rows.row_dims import UNSURE, Rows, is_symbolic
from keras_par.keras_patches.rows.row_slices import Lookup, joined, lookup_of, pieces, summed
from keras_par.keras_patches.step.known_losses import require_known
from keras_par.keras_patches.variables.division import is_range
from keras_par.keras_patches.variables.layouts import divide
from keras_par.sharding import step as steps
from keras_par.sharding.collective_names import is_in_loop, numbered
from keras_par.sharding.copies import of_first
from keras_par.sharding.tensor import ShardedTensor
from keras_par.sharding.tensor import of_shards as tensor_of_shards
from keras_par.sharding.variable_views import identity, is_sharded, is_summed_backward, local_view, placement_of
from keras_par.sharding.zero_parts import has_own_part, is_part, scatter_gradients

OF_BATCH = "keras_par_gradient_of_batch"
VARIABLES = (tf.Variable, keras.Variable)

# Inside of a jacobian, whose rows are gradients that must stay what they are.
_is_jacobian: contextvars.ContextVar[bool] = contextvars.ContextVar("keras_par_jacobian", default=False)


def tape_gradient(original):
    """Gradients of variables are those of the global batch, those of tensors are this rank's."""

    def replacement(self, target, sources, output_gradients=None, unconnected_gradients=tf.UnconnectedGradients.NONE):
        def take(weights=output_gradients):
            return original(self, target, sources, weights, unconnected_gradients)

        return of_batch(take, target, sources, output_gradients, is_repeatable=self._persistent)

    return replacement


def graph_gradients(original):
    """As `tape_gradient`."""

    def replacement(ys, xs, grad_ys=None, *args, **kwargs):
        def take(weights=grad_ys):
            return original(ys, xs, weights, *args, **kwargs)

        return of_batch(take, ys, xs, grad_ys, is_repeatable=True)

    return replacement


def tape_jacobian(original):
    """Of a target with rows it has this rank's rows; any other is of the global batch, for variables."""

    def replacement(self, target, sources, *args, **kwargs):
        with as_they_are():
            jacobians = original(self, target, sources, *args, **kwargs)
        step = steps.current()
        flat = tf.nest.flatten(sources)
        places = [place for place, source in enumerate(flat) if isinstance(source, VARIABLES)]
        if step is None or step.probed is not None or not places or has_rows(step, target):
            return jacobians
        result, weight = tf.nest.flatten(jacobians), weight_of(step, target)
        own = [scaled(result[place], weight, no_nan=step.thin) for place in places]
        for place, jacobian in zip(
            places, sum_at_tape(step, own, [flat[place] for place in places], False), strict=True
        ):
            result[place] = jacobian
        return tf.nest.pack_sequence_as(sources, result)

    return replacement


@contextlib.contextmanager
def as_they_are():
    """Within it gradients stay this rank's."""
    token = _is_jacobian.set(True)
    try:
        yield
    finally:
        _is_jacobian.reset(token)


def of_batch(take, target, sources, output_gradients, is_repeatable: bool):
    """What `take`, a function of output gradients, gives; for variables weighted, and summed over the ranks.

    Args:
        take: takes the gradients.
        target: of which.
        sources: with respect to which.
        output_gradients: as the step gave them.
        is_repeatable: True if `take` can be called twice.
    """
    step = steps.current()
    flat = tf.nest.flatten(sources)
    places = [place for place, source in enumerate(flat) if isinstance(source, VARIABLES)]
    targets = tf.nest.flatten(target)
    if step is None or _is_jacobian.get() or not places or is_for_apply(step, targets):
        return take()
    if step.probed is not None:
        step.probed.losses += [each for each in targets if isinstance(each, tf.Tensor)]
        return tf.nest.map_structure(named_as_gradient, take())
    require_known(step, targets)
    given = [None] * len(targets) if output_gradients is None else tf.nest.flatten(output_gradients)
    weights = [weighted(step, each, gradient) for each, gradient in zip(targets, given, strict=True)]
    result = tf.nest.flatten(take(weights))
    own = result
    if len(places) < len(flat):
        own = tf.nest.flatten(take()) if is_repeatable else unweighted(step, targets, result)
    sums = iter(sum_at_tape(step, [result[place] for place in places], [flat[place] for place in places]))
    result = [shown(next(sums), flat[place]) if place in places else own[place] for place in range(len(flat))]
    return tf.nest.pack_sequence_as(sources, result)


def shown(gradient: Gradient, variable: Any) -> Any:
    """The gradient of a variable as a step of the user's own sees it: whole where the variable is divided."""
    if gradient is None or not is_sharded(variable):
        return gradient
    shards = tf.convert_to_tensor(gradient)
    return tensor_of_shards(shards, placement_of(variable).stored, variable.mesh, variable._shape)


def of_shard(gradient: Any, variable: Any) -> Gradient:
    """What an optimizer takes: of a gradient that a step of the user's own has seen whole, the variable's shard."""
    is_whole = isinstance(gradient, ShardedTensor)
    if isinstance(gradient, tf.Tensor) and is_sharded(variable):
        fits = gradient.shape.is_compatible_with
        is_whole = fits(variable._shape) and not fits(variable.local_shape)
    return divide(gradient, placement_of(variable).stored, variable.mesh).local if is_whole else gradient


def named_as_gradient(gradient: Any) -> Any:
    """`gradient` under a name by which the probe finds losses that are made of gradients."""
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(named_as_gradient(gradient.values), gradient.indices, gradient.dense_shape)
    return None if gradient is None else tf.identity(gradient, name=OF_BATCH)


def unweighted(step: steps.Step, targets: list, gradients: list) -> list:
    """What `gradients` would be without weights.

    Raises:
        ValueError: the targets' weights differ.
    """
    tensors = [each for each in targets if isinstance(each, tf.Tensor) and each.dtype.is_floating]
    if len({has_rows(step, each) for each in tensors}) > 1:
        raise ValueError(
            "keras-par: a training step takes the gradients of losses of rows and of means over rows at once, with "
            "respect to variables and to tensors: take those of variables by a call of their own, of a persistent tape."
        )
    return [scaled(gradient, tf.math.reciprocal_no_nan(weight_of(step, tensors[0]))) for gradient in gradients]


def is_for_apply(step: steps.Step, targets: list) -> bool:
    """True for the loss of Keras's own step, whose gradients the optimizer reduces."""
    return step.is_stock and any(target is each for target in targets for each in step.targets)


def weighted(step: steps.Step, target: Any, output_gradient: Any) -> Any:
    """The output gradient that makes a target's gradient this rank's part of the global batch's."""
    if not isinstance(target, tf.Tensor) or not target.dtype.is_floating:
        return output_gradient
    ones = tf.ones_like(target) if output_gradient is None else tf.convert_to_tensor(output_gradient, target.dtype)
    return step.times(ones, weight_of(step, target))


def weight_of(step: steps.Step, target: tf.Tensor) -> tf.Tensor:
    """What a loss is multiplied by. One with a value for each row has the gradient of its sum, which needs no share."""
    per_row = has_rows(step, target)
    weight = tf.cast(step.local > 0, target.dtype) if per_row else step.weight(target.dtype)
    return step.binding.times(weight)


def has_rows(step: steps.Step, target: tf.Tensor) -> bool:
    """True if the target's first dim is the batch's rows, each in one place or more.

    In a graph that is followed back to the batch; where it cannot be, and in eager steps, the sizes decide.
    """
    if target.shape.rank == 0:
        return False
    known = step.rows.of(target) if step.rows is not None and is_symbolic(target) else UNSURE
    if known is not UNSURE:
        return isinstance(known, Rows) and known.dim == 0
    local = step.local if step.rows is None else step.rows.here
    if target.shape.rank is None or target.shape[0] is None:
        return True
    if isinstance(local, tf.Tensor) and is_symbolic(local):
        return False  # the batch's rows are not known while tracing
    return target.shape[0] % max(int(local), 1) == 0


def sum_at_tape(step: steps.Step, gradients: list, variables: list, have_shapes: bool = True) -> list[Gradient]:
    """Weighted gradients, with their variables' shapes or others, summed over the ranks.

    Costs one all-reduce for each bucket, and one for each gradient backward.
    """
    own = {identity(variable) for variable in variables}
    step.binding.weighted_at_tape |= own
    if is_in_loop():
        warnings.warn(
            "keras-par: a training step takes a gradient within a loop of a graph, where ranks cannot talk: what the "
            "loop does to it, it does to this rank's part, and the optimizer sums over ranks: if the step does more "
            "than adding gradients up, use a loop of Python's.",
            stacklevel=2,
        )
        return gradients
    step.require_plain("a gradient of variables that is taken beside the optimizer's")
    step.binding.summed_at_tape |= own
    are_slices = [isinstance(gradient, tf.IndexedSlices) for gradient in gradients]
    step.binding.sliced_at_tape |= set(map(identity, itertools.compress(variables, are_slices)))
    gradients = with_shapes(gradients, variables) if have_shapes else gradients
    if step.thin:  # what a stand-in row gives does not count, even if it is NaN
        counts = tf.cast(step.local > 0, tf.float32)
        gradients = [
            gradient if is_summed_backward(variable) else scaled(gradient, counts, no_nan=True)
            for gradient, variable in zip(gradients, variables, strict=True)
        ]
    return newest_ranges(step, sum_differentiably(step, gradients, variables), gradients, variables)


def newest_ranges(step: steps.Step, sums: list[Gradient], own: list[Gradient], variables: list) -> list[Gradient]:
    """`sums`, with maxima over ranks for variables that take their gradients as values, as float8's ranges do."""
    pairs = enumerate(zip(own, variables, strict=True))
    places = [place for place, (gradient, each) in pairs if gradient is not None and is_range(each)]
    if places:
        most = step.communicator.all_reduce([own[place] for place in places], numbered("ranges"), "max")
        for place, value in zip(places, most, strict=True):
            sums[place] = value
    return sums


def sum_differentiably(step: steps.Step, gradients: list[Gradient], variables: list) -> list[Gradient]:
    """The sums over ranks, differentiable: what all ranks make of a sum goes back to all parts of it."""
    split = [pieces(gradient) for gradient in gradients]
    pairs = [(part, variable) for each, variable in zip(split, variables, strict=True) for part in each]
    own = [part for part, _ in pairs if part is not None]
    indices: list[tf.Tensor | None] = []

    @tf.custom_gradient
    def call(*values):
        parts = [with_values(gradient, each) for gradient, each in zip(own, values, strict=True)]
        sums = sum_gradients(step, parts, [variable for part, variable in pairs if part is not None])
        indices[:] = [each.indices if isinstance(each, tf.IndexedSlices) else None for each in sums]

        def backward(*upstream):
            return [sent_back(step, *each) for each in zip(upstream, parts, indices, strict=True)]

        return [values_of(each) for each in sums], backward

    sums = call(*map(values_of, own)) if own else []
    left = iter(zip(own, sums, indices, strict=True))
    result = [[None if part is None else with_values(*next(left)) for part in each] for each in split]
    return [joined(each) for each in result]


def sent_back(step: steps.Step, upstream: tf.Tensor, part: Any, indices: tf.Tensor | None) -> tf.Tensor:
    """The gradient of this rank's part of a sum with these indices, of which `upstream` is what this rank makes."""
    like = values_of(part)
    is_sparse = isinstance(part, tf.IndexedSlices)
    upstream = tf.ensure_shape(upstream, [None, *like.shape[1:]] if is_sparse else like.shape)
    [everything] = differentiable.total([upstream], step.communicator, numbered)
    lookup = lookup_of(step, part)
    if lookup is Lookup.OF_ROWS:
        return differentiable.own_rows(everything, like, step.communicator, numbered)
    if lookup is Lookup.DISTINCT:
        return tf.gather(everything, tf.argmax(part.indices[:, tf.newaxis] == indices, 1))
    return everything


def sum_gradients(
    step: steps.Step, gradients: list, variables: list, but: Collection[int] = (), to_parts: bool = False
) -> list[Gradient]:
    """The weighted gradients of `variables` summed over the ranks that have other rows.

    Those of variables that are divided among these ranks have been summed where they were computed, as have those of
    variables whose `identity` is in `but`. Costs one all-reduce for each bucket, and what `of_first` does.

    Args:
        step: under way.
        gradients: this rank's.
        variables: which they are of.
        but: see above.
        to_parts: True gives this rank's parts of the gradients of variables that it updates a part of, for one
            reduce-scatter for each bucket.
    """
    options = step.binding.options
    limit, result = int(options.fusion_mb * 2**20), list(gradients)
    own = enumerate(zip(gradients, variables, strict=True))
    places = [i for i, (g, v) in own if is_to_sum(g, v) and identity(v) not in but]
    name = numbered("gradients") if places else ""
    parts = [i for i in places if to_parts and has_own_part(variables[i]) and gradients[i] is not None]
    rest = [i for i in places if i not in parts]

    def add(tensors: list) -> list:
        are_even = isinstance(step.local, int)  # then every rank has as many rows
        return reducer.sum_gradients(step.communicator, tensors, name, limit, options.compression, are_even)

    pairs = [(gradients[i], variables[i]) for i in parts]
    sums: list = scatter_gradients(pairs, f"{name}.parts", limit, options.compression) if parts else []
    sums += summed(step, [gradients[i] for i in rest], add)
    for place, gradient in zip([*parts, *rest], sums, strict=True):
        result[place] = gradient
    return of_first(step.binding.mesh, result, variables, but)


def is_to_sum(gradient: Gradient, variable: Any) -> bool:
    """True if a gradient is this rank's part of a sum, not the sum or a part of that, nor a range of numbers."""
    return not (is_summed_backward(variable) or is_range(variable) or is_part(gradient, variable))


def with_shapes(gradients, variables) -> list:
    """`gradients` with the static shapes of their variables, which some gradients lack but bucketing needs."""
    gradients, variables = list(gradients), list(variables)
    with local_view():
        for gradient, variable in zip(gradients, variables, strict=True):
            if isinstance(gradient, tf.Tensor) and not gradient.shape.is_fully_defined():
                gradient.set_shape(variable.shape)
    return gradients
