"""An optimizer's update on several ranks: weighs gradients, accumulates, sums over ranks, clips, updates and averages.

`apply` and `apply_gradients` are the steps of it, in their order. Gradients are summed over ranks once, after they are
accumulated and before they are clipped.
"""

import contextlib
import contextvars
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf
from keras.src.optimizers.loss_scale_optimizer import LossScaleOptimizer

from keras_par.comm import world
from keras_par.comm.reducer import scaled, values_of
from keras_par.keras_patches.update import deterministic_slices
from keras_par.keras_patches.update.gradients import newest_ranges, of_shard, sum_gradients, weight_of, with_shapes
from keras_par.keras_patches.update.variable_update import average
from keras_par.plan.placement import WHOLE
from keras_par.sharding import copies
from keras_par.sharding import step as steps
from keras_par.sharding.collective_names import unique
from keras_par.sharding.variable_views import identity, is_summed_backward, local_view, placement_of
from keras_par.sharding.zero_parts import has_own_part, own_part_of

# What the update under way applies gradients to, in their order.
_targets: contextvars.ContextVar[Sequence] = contextvars.ContextVar("keras_par_targets", default=())


@contextlib.contextmanager
def losses_weighted(optimizer: keras.optimizers.Optimizer | None) -> Iterator[None]:
    """Within it losses of Keras's own step are weighted by this rank's rows before `optimizer` scales them.

    So summed gradients are those of the global loss, whichever way the optimizer has to scale one. In a step of the
    user's own that happens where the gradient is taken, see `gradients.py`.
    """
    if optimizer is None:
        yield
        return
    original = optimizer.scale_loss

    def scale_loss(loss):
        step = steps.current()
        if step is None or not step.is_stock:
            return original(loss)
        loss = tf.convert_to_tensor(loss)
        step.targets.append(original(step.times(loss, weight_of(step, loss))))
        return step.targets[-1]

    vars(optimizer)["scale_loss"] = scale_loss  # not by setattr, which would track it
    try:
        yield
    finally:
        del vars(optimizer)["scale_loss"]


def apply(original):
    """Weights gradients that neither a loss nor a tape has weighted; a loss scale's check is of their sums."""

    def replacement(self, grads, trainable_variables=None):
        step = steps.current()
        trainable_variables = None if trainable_variables is None else list(trainable_variables)
        variables = self._trainable_variables if trainable_variables is None else trainable_variables
        if step is None:
            require_step(variables)
        if step is None or step.reduced is not None:
            return original(self, grads, trainable_variables)
        grads = with_shapes([of_shard(g, v) for g, v in zip(grads, variables, strict=True)], variables)
        if not step.is_stock:
            grads = weigh_rest(step, grads, variables)
        if step.captured is not None:
            step.captured.append((self, grads, trainable_variables))
            return None
        grads = newest_ranges(step, grads, grads, variables)
        reduced: frozenset[int] = frozenset()
        if not step.is_stock:
            reduced = frozenset(step.binding.summed_at_tape)
            grads = deterministic_slices.of_own_step(step, grads, variables)
        if isinstance(self, LossScaleOptimizer) and not accumulates(self):
            grads = sum_gradients(step, grads, variables, reduced, to_parts=True)
            reduced = frozenset(map(identity, variables))
        step.reduced = reduced
        try:
            return original(self, grads, trainable_variables)
        finally:
            step.reduced = None

    return replacement


def require_step(variables: list) -> None:
    """Refuses to update, outside of a model's step, variables whose gradients ranks have summed backward.

    Raises:
        ValueError: there is one.
    """
    summed = next(filter(is_summed_backward, variables), None)
    if summed is not None:
        raise ValueError(
            f"keras-par: ranks with other rows divide '{summed.path}', so that its gradient is their sum already, "
            "which a loop by hand would sum once more: train by fit, by train_on_batch or by a train_step of the "
            "model's, or store it whole, by zero=2 or a layout without the batch axis."
        )


def weigh_rest(step: steps.Step, grads: list, variables: list) -> list:
    """`grads` of a step of the user's own, with those weighted that no tape has weighted.

    Raises:
        ValueError: one of these was summed over ranks before, and their rows are not known to be as many.
    """
    known = step.binding.weighted_at_tape
    rest = [variable for variable in variables if identity(variable) not in known]
    summed = next(filter(is_summed_backward, rest), None)
    if summed is not None and not isinstance(step.local, int):
        raise ValueError(
            f"keras-par: the gradient of '{summed.path}', which is divided along the batch axis, is summed over ranks "
            "with other numbers of rows: let the training step take the gradients of optimizer.scale_loss(loss), or "
            "give it batches that the ranks divide evenly (drop_remainder=True)."
        )
    weight = step.binding.times(step.weight(tf.float64))
    return [g if identity(v) in known else scaled(g, weight) for g, v in zip(grads, variables, strict=True)]


def accumulates(optimizer: LossScaleOptimizer) -> bool:
    """True if it adds up the gradients of several steps, so that those of one are not applied, nor to be summed."""
    return bool(optimizer.inner_optimizer.gradient_accumulation_steps)


def check_finite(original):
    """Ranks skip an update together, though each sees gradients of its own. Costs one all-reduce of a number.

    They see shards and parts, and what accumulates before it is summed.
    """

    def replacement(self, grads):
        finite = original(self, grads)
        is_summed = steps.current() is None or not accumulates(self)
        if is_summed and not any(map(has_parts, self._trainable_variables)):
            return finite
        [least] = world.current().all_reduce([tf.cast(finite, tf.int32)], unique("finite"), "min")
        return tf.cast(least, tf.bool)

    return replacement


def apply_gradients(original):
    """Accumulates gradients, sums them over ranks, clips, decays weights, updates and averages.

    That is what Keras does, but for the sum, in its order, and on what this rank holds of each variable.
    """

    def replacement(self, grads, variables):
        step = steps.current()
        if step is None and all(placement_of(variable) == WHOLE for variable in self._trainable_variables):
            return original(self, grads, variables)

        def update(grads: list) -> None:
            if step is not None:
                grads = sum_gradients(step, grads, variables, step.reduced or (), to_parts=True)
            grads = [own_part_of(gradient, variable) for gradient, variable in zip(grads, variables, strict=True)]
            grads = self._clip_gradients(grads)
            self._apply_weight_decay([variable for variable in variables if not has_own_part(variable)])
            self._backend_update_step(grads, variables, self.learning_rate)

        def update_by_sums() -> None:
            update([(gradient + total) / every for gradient, total in zip(grads, sums, strict=True)])
            self._backend_reset_gradient_accumulators()

        token = _targets.set(list(variables))
        try:
            with local_view():
                if every := self.gradient_accumulation_steps:
                    grads = grads if step is None else to_accumulate(step, grads, variables)
                    sums = [self._accumulated_gradients[self._get_variable_index(variable)] for variable in variables]
                    is_due = (self._iterations + 1) % every == 0
                    add = self._backend_increment_gradient_accumulators
                    keras.ops.cond(is_due, update_by_sums, lambda: add(grads, sums))
                else:
                    update(grads)
                if self.use_ema:
                    average(self)
        finally:
            _targets.reset(token)
        return None

    return replacement


def to_accumulate(step: steps.Step, grads: list, variables: list) -> list:
    """What an optimizer that accumulates adds up.

    Accumulators that ranks divide take this rank's part of sums; the others what ranks still sum, which a sum that is
    there already is on the first rank only.
    """
    later = {identity(variable) for variable in variables if not placement_of(variable).is_scattered_at_once}
    reduced = step.reduced or frozenset()
    result = sum_gradients(step, grads, variables, reduced | later, to_parts=True)
    for place, variable in enumerate(variables):
        if identity(variable) not in later:
            result[place] = own_part_of(result[place], variable)
        elif identity(variable) in reduced and not is_summed_backward(variable):
            result[place] = scaled(result[place], float(step.communicator.rank == 0))
    step.reduced = frozenset(map(identity, variables)) - later
    return result


def clip_gradients(original):
    """Clips by norms of whole gradients. Costs one all-reduce of some numbers for each axis that divides any.

    Clipping by a global norm makes slices dense. Where ranks do not add them up with the same bits it is done here,
    see `deterministic_slices`.
    """

    def replacement(self, grads):
        variables = _targets.get()
        by_norm, by_global_norm = self.clipnorm, self.global_clipnorm
        have_own_bits = steps.current() is not None and not copies.repeats_bits()
        adds_rows = by_global_norm and have_own_bits and any(isinstance(each, tf.IndexedSlices) for each in grads)
        if not (any(map(has_parts, variables)) or adds_rows) or not (by_norm or by_global_norm):
            return original(self, grads)
        squares = whole_squares(grads, variables)
        if by_norm:  # what makes a norm at most that; NaN if it is NaN, as in Keras
            scales = [None if s is None else by_norm / tf.maximum(tf.sqrt(s), by_norm) for s in squares]
            return [scaled(gradient, scale) for gradient, scale in zip(grads, scales, strict=True)]
        norm = tf.sqrt(tf.add_n([square for square in squares if square is not None]))
        # As Keras has it: infinite and NaN norms make the gradients NaN.
        scale = by_global_norm * tf.minimum(1.0 / norm, 1.0 / by_global_norm) + (norm - norm)
        pairs = zip(grads, variables, strict=True)
        dense = [
            deterministic_slices.added_up(g, v) if isinstance(g, tf.IndexedSlices) else g for g, v in pairs
        ]  # as Keras does
        return [scaled(gradient, scale) for gradient in dense]

    return replacement


def whole_squares(grads: list, variables: list) -> list:
    """The sum of squares of each whole gradient, in float32, or in float64 if a gradient is.

    Costs one all-reduce for each axis that divides any.
    """
    wide = tf.float64 if any(g is not None and g.dtype == tf.float64 for g in grads) else tf.float32
    squares = [None if g is None else tf.reduce_sum(tf.square(tf.cast(values_of(g), wide))) for g in grads]
    divided = [i for i, v in enumerate(variables) if has_parts(v) and squares[i] is not None]
    for axis in variables[divided[0]].mesh.plan.axis_names if divided else ():
        places = [i for i in divided if axis in placement_of(variables[i]).gradient]
        if places:
            group = variables[places[0]].mesh.along(axis)
            [sums] = group.all_reduce([tf.stack([squares[i] for i in places])], unique("norms"))
            for place, square in zip(places, tf.unstack(sums), strict=True):
                squares[place] = square
    return squares


def has_parts(variable: Any) -> bool:
    """True if this rank's gradient of the variable is a part of the whole one."""
    return any(placement_of(variable).gradient)
