"""Runs optimizers on shards: each updates this rank's part as it would the whole, norms and statistics are global."""

import contextlib
import contextvars
from typing import Any

import keras
import tensorflow as tf
from keras import optimizers
from keras.src.optimizers.base_optimizer import BaseOptimizer

from keras_par.comm import world
from keras_par.plan.buckets import fill_buckets
from keras_par.plan.layout import Axes
from keras_par.plan.placement import WHOLE, Placement
from keras_par.seam.variables.division import beside
from keras_par.seam.variables.open_variable import OpenVariable
from keras_par.sharding import step as steps
from keras_par.sharding.names import unique
from keras_par.sharding.parts import BUCKET_BYTES, Part, buckets_of, bytes_of, has_own_part, join, own_part_of, parts_of
from keras_par.sharding.tensor import of_shards
from keras_par.sharding.views import is_local, is_sharded, local_view, placement_of, sharded

# Optimizers whose update of an element depends on nothing but that element. Others see whole variables.
ELEMENTWISE = tuple(
    getattr(optimizers, name)
    for name in ["SGD", "RMSprop", "Adam", "AdamW", "Adadelta", "Adagrad", "Adamax", "Ftrl", "Nadam", "Lion"]
    if hasattr(optimizers, name)
)

ACCUMULATOR = "gradient_accumulator"  # what Keras calls the sum of some steps' gradients

# What the update under way applies gradients to, in their order.
_targets: contextvars.ContextVar[list | None] = contextvars.ContextVar("keras_par_targets", default=None)


def targets() -> list:
    """The variables that the update under way applies gradients to, in the gradients' order."""
    return _targets.get() or []


def apply(original):
    """Applies gradients of shards to shards; constraints see whole variables."""

    def replacement(self, grads, trainable_variables=None):
        variables = trainable_variables if trainable_variables is not None else self._trainable_variables
        variables = list(variables)
        divided = sharded(variables)
        if is_local() or not (divided or any(map(has_own_part, variables))):
            return original(self, grads, trainable_variables)
        if not self.built:
            with keras.name_scope(self.name, caller=self):
                self.build(variables)
        with without_constraints(divided) as constraints, local_view():
            original(self, grads, variables)
        for variable, constraint in constraints:
            variable.assign(constraint(variable))

    return replacement


@contextlib.contextmanager
def without_constraints(variables: list):
    """Takes the variables' constraints off for a block, and gives the pairs of both."""
    pairs = [(variable, variable.constraint) for variable in variables if variable.constraint is not None]
    for variable, _ in pairs:
        variable._constraint = None
    try:
        yield pairs
    finally:
        for variable, constraint in pairs:
            variable._constraint = constraint


def apply_gradients(original):
    """Notes which variables the gradients belong to."""

    def replacement(self, grads, trainable_variables):
        token = _targets.set(list(trainable_variables))
        try:
            return original(self, grads, trainable_variables)
        finally:
            _targets.reset(token)

    return replacement


def clip_gradients(original):
    """Clips by norms of whole gradients. Costs one all-reduce of some numbers for each axis that divides any."""

    def replacement(self, grads):
        variables = targets()
        grads = [own_part_of(gradient, variable) for gradient, variable in zip(grads, variables, strict=True)]
        by_norm, by_global_norm = self.clipnorm, self.global_clipnorm
        if not any(map(has_parts, variables)) or not (by_norm or by_global_norm):
            return original(self, grads)
        squares = whole_squares(grads, variables)
        if by_norm:
            scales = [None if square is None else norm_scale(square, by_norm) for square in squares]
            return [None if g is None else times(g, s, is_sparse=True) for g, s in zip(grads, scales, strict=True)]
        norm = tf.sqrt(tf.add_n([square for square in squares if square is not None]))
        # As Keras has it: infinite and NaN norms make the gradients NaN.
        scale = by_global_norm * tf.minimum(1.0 / norm, 1.0 / by_global_norm) + (norm - norm)
        return [None if g is None else times(g, scale, is_sparse=False) for g in grads]

    return replacement


def norm_scale(square: tf.Tensor, clipnorm: float) -> tf.Tensor:
    """What a gradient is multiplied by to have at most that norm."""
    norm = tf.sqrt(square)
    return tf.where(norm > clipnorm, clipnorm / norm, tf.ones_like(norm))


def times(gradient: Any, scale: tf.Tensor, is_sparse: bool) -> Any:
    """The gradient scaled; with `is_sparse` False gradients of single rows become dense, as in Keras's global norm."""
    if isinstance(gradient, tf.IndexedSlices) and is_sparse:
        values = gradient.values * tf.cast(scale, gradient.dtype)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return tf.convert_to_tensor(gradient) * tf.cast(scale, gradient.dtype)


def whole_squares(grads: list, variables: list) -> list:
    """The sum of squares of each whole gradient, in float32, or in float64 if a gradient is.

    Costs one all-reduce for each axis that divides any.
    """
    wide = tf.float64 if any(g is not None and g.dtype == tf.float64 for g in grads) else tf.float32
    squares = [None if g is None else tf.reduce_sum(tf.square(tf.cast(values_of(g), wide))) for g in grads]
    divided = [
        place for place, v in enumerate(variables) if any(placement_of(v).gradient) and squares[place] is not None
    ]
    if not divided:
        return squares
    mesh = variables[divided[0]].mesh
    for axis in mesh.plan.axis_names:
        places = [place for place in divided if axis in placement_of(variables[place]).gradient]
        if places:
            own = tf.stack([squares[place] for place in places])
            [sums] = mesh.along(axis).all_reduce([own], unique("norms"))
            for place, square in zip(places, tf.unstack(sums), strict=True):
                squares[place] = square
    return squares


def has_parts(variable: Any) -> bool:
    """True if this rank's gradient of the variable is a part of the whole one."""
    return any(placement_of(variable).gradient)


def values_of(gradient: Any) -> tf.Tensor:
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient


def check_finite(original):
    """Ranks skip an update together, though each sees its own shards only. Costs one all-reduce of a number."""

    def replacement(self, grads):
        finite = original(self, grads)
        if not is_local():
            return finite
        [least] = world.current().all_reduce([tf.cast(finite, tf.int32)], unique("finite"), "min")
        return tf.cast(least, tf.bool)

    return replacement


def add_variable_from_reference(original):
    """Slots have the whole variable's shape and its layout, and know which variable they are for."""

    def made(optimizer, reference, name, initializer):
        placement = placement_of(reference)
        if placement == WHOLE and not isinstance(reference, OpenVariable):
            return original(optimizer, reference, name, initializer)
        with contextlib.ExitStack() as within:
            if placement != WHOLE:
                axes = placement.accumulator if name == ACCUMULATOR else placement.slots
                within.enter_context(local_view(False))
                within.enter_context(beside(reference, axes))
            return BaseOptimizer.add_variable_from_reference(optimizer, reference, name, initializer)

    def replacement(self, reference_variable, name=None, initializer="zeros"):
        slot = made(self, reference_variable, name, initializer)
        slot.reference = reference_variable
        return slot

    return replacement


def slots_by_variable(optimizer: BaseOptimizer, with_accumulators: bool = False) -> dict[int, list[keras.Variable]]:
    """For variables, by their ids, the state that an update needs; sums of steps' gradients only if asked for."""
    found: dict[int, list[keras.Variable]] = {}
    for slot in optimizer.variables:
        reference = getattr(slot, "reference", None)
        if reference is not None and (with_accumulators or not is_accumulator(slot)):
            found.setdefault(id(reference), []).append(slot)
    return found


def is_accumulator(slot: keras.Variable) -> bool:
    """True for the sum of some steps' gradients."""
    return slot.name.endswith(ACCUMULATOR)


def axes_of(slot: keras.Variable, placement: Placement) -> Axes:
    """How a slot of a variable that lies so is divided."""
    return placement.accumulator if is_accumulator(slot) else placement.slots


def var_key(original):
    """A variable is known by what this rank stores of it, one without a value by itself."""

    def replacement(self, variable):
        if isinstance(variable, OpenVariable):
            return id(variable)
        if isinstance(variable, Part):
            variable = variable.variable
        return original(self, variable if placement_of(variable) == WHOLE else variable._value)

    return replacement


def is_elementwise(optimizer: BaseOptimizer) -> bool:
    """True if its update of an element depends on nothing but that element."""
    return any(type(optimizer).update_step is kind.update_step for kind in ELEMENTWISE)


def apply_weight_decay(original):
    """Leaves variables of which this rank updates a part to `update_step`."""

    def replacement(self, variables):
        return original(self, [variable for variable in variables if not has_own_part(variable)])

    return replacement


def update_step(original):
    """Updates parts where a rank updates a part, and joins the ranks' parts. Costs one all-gather for each bucket.

    Optimizers that look beyond single elements see whole variables and gradients, sharded as they are.
    """

    def replacement(self, grads, trainable_variables, learning_rate):
        if is_elementwise(self) or not any(map(is_sharded, trainable_variables)):
            pairs = [*zip(grads, trainable_variables, strict=True)]
            update_stored(original, self, [pair for pair in pairs if not has_own_part(pair[1])], learning_rate)
            update_parts(self, [pair for pair in pairs if has_own_part(pair[1])], learning_rate)
            return
        with local_view(False):
            for grad, variable in zip(grads, trainable_variables, strict=True):
                if is_sharded(variable):
                    shards, axes = tf.convert_to_tensor(grad), placement_of(variable).gradient
                    grad = of_shards(shards, axes, variable.mesh, variable._shape)
                self.update_step(grad, variable, learning_rate)

    return replacement


def update_stored(original, optimizer: BaseOptimizer, pairs: list, learning_rate: Any) -> None:
    """Updates variables of which this rank updates all that it stores, in a step bucket by bucket.

    Else the temporaries of all updates would be in memory at once. Weights that are gathered on use have gradients that
    come one by one, and are updated as these come.
    """
    comes_by_itself = any(placement_of(variable).is_gathered_on_use for _, variable in pairs)
    if steps.current() is None or tf.executing_eagerly() or comes_by_itself:
        original(optimizer, [gradient for gradient, _ in pairs], [variable for _, variable in pairs], learning_rate)
        return
    before: list[int] = []
    values = [variable._value for _, variable in pairs]
    for bucket in fill_buckets([bytes_of(value) for value in values], [None] * len(values), BUCKET_BYTES):
        gradients, variables = zip(*(pairs[place] for place in bucket), strict=True)
        with tf.control_dependencies([values[place].read_value() for place in before]):
            original(optimizer, list(gradients), list(variables), learning_rate)
        before = bucket


def update_parts(optimizer: BaseOptimizer, pairs: list, learning_rate: Any) -> None:
    """Updates this rank's parts one after another, and joins them bucket by bucket.

    Else the temporaries of all updates, or all new values, would be in memory at once. Costs one all-gather for each
    bucket.
    """
    before: list = []
    for bucket in buckets_of([variable for _, variable in pairs]):
        parts = []
        for gradient, variable in (pairs[place] for place in bucket):
            with tf.control_dependencies([gradient, *before]):
                part = Part(variable)
                optimizer._apply_weight_decay([part])
                optimizer.update_step(gradient, part, learning_rate)
            parts.append(part)
            before = [part.value]
        before = join(parts)


def update_average(original):
    """Averages parts where a rank has a part of the average."""

    def replacement(self, trainable_variables):
        variables = [Part(each) if has_own_part(each) else each for each in trainable_variables]
        return original(self, variables if self.use_ema else trainable_variables)

    return replacement


def overwrite_with_average(original):
    """Shards get the averages of shards, and all ranks those of parts."""

    def replacement(self, trainable_variables):
        with local_view(), parts_of(trainable_variables) as variables:
            return original(self, variables)

    return replacement


def assign(original):
    """Assigns to sharded variables by themselves, by their method of the same name."""
    name = original.__name__

    def replacement(self, variable, value):
        if is_sharded(variable) and not is_local():
            return getattr(variable, name)(keras.ops.cast(value, variable.dtype))
        return original(self, variable, value)

    return replacement
