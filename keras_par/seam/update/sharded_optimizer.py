"""Runs optimizers on shards: each updates this rank's part as it would the whole, norms and checks are global."""

import contextlib
import contextvars
from typing import Any

import keras
import tensorflow as tf

from keras_par.comm import world
from keras_par.comm.reducer import scaled, values_of
from keras_par.seam.update import same_rows
from keras_par.sharding import copies
from keras_par.sharding import step as steps
from keras_par.sharding.names import unique
from keras_par.sharding.parts import has_own_part, own_part_of
from keras_par.sharding.views import is_local, local_view, placement_of, sharded

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
    """Clips by norms of whole gradients. Costs one all-reduce of some numbers for each axis that divides any.

    Clipping by a global norm makes slices dense. Where ranks do not add them up with the same bits it is done here,
    see `same_rows`.
    """

    def replacement(self, grads):
        variables = targets()
        grads = [own_part_of(gradient, variable) for gradient, variable in zip(grads, variables, strict=True)]
        by_norm, by_global_norm = self.clipnorm, self.global_clipnorm
        have_own_bits = steps.current() is not None and not copies.repeats_bits()
        adds_rows = by_global_norm and have_own_bits and any(isinstance(each, tf.IndexedSlices) for each in grads)
        if not (any(map(has_parts, variables)) or adds_rows) or not (by_norm or by_global_norm):
            return original(self, grads)
        squares = whole_squares(grads, variables)
        if by_norm:
            scales = [None if square is None else norm_scale(square, by_norm) for square in squares]
            return [scaled(gradient, scale) for gradient, scale in zip(grads, scales, strict=True)]
        norm = tf.sqrt(tf.add_n([square for square in squares if square is not None]))
        # As Keras has it: infinite and NaN norms make the gradients NaN.
        scale = by_global_norm * tf.minimum(1.0 / norm, 1.0 / by_global_norm) + (norm - norm)
        pairs = zip(grads, variables, strict=True)
        dense = [same_rows.added_up(g, v) if isinstance(g, tf.IndexedSlices) else g for g, v in pairs]  # as Keras does
        return [scaled(gradient, scale) for gradient in dense]

    return replacement


def norm_scale(square: tf.Tensor, clipnorm: float) -> tf.Tensor:
    """What a gradient is multiplied by to have at most that norm; NaN if that is NaN, as in Keras."""
    return clipnorm / tf.maximum(tf.sqrt(square), clipnorm)


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


def check_finite(original):
    """Ranks skip an update together, though each sees its own shards only. Costs one all-reduce of a number."""

    def replacement(self, grads):
        finite = original(self, grads)
        if not is_local():
            return finite
        [least] = world.current().all_reduce([tf.cast(finite, tf.int32)], unique("finite"), "min")
        return tf.cast(least, tf.bool)

    return replacement
