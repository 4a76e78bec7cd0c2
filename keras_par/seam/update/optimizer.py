"""Reduces the gradients of Keras's own step inside an optimizer's update: after accumulation, before clipping, once."""

import contextlib
import itertools

import tensorflow as tf
from keras.src.optimizers.base_optimizer import BaseOptimizer
from keras.src.optimizers.loss_scale_optimizer import LossScaleOptimizer

from keras_par.comm.reducer import scaled
from keras_par.seam.table.patch import wrap
from keras_par.seam.update import same_rows
from keras_par.seam.update.gradients import newest_ranges, of_shards, weight_of, with_shapes
from keras_par.seam.update.sharded_optimizer import targets
from keras_par.sharding import step as steps
from keras_par.sharding.names import numbered
from keras_par.sharding.parts import own_part_of
from keras_par.sharding.views import identity, is_summed_backward, placement_of


def scale_loss(original):
    """Weights the loss of Keras's own step by this rank's rows, so that summed gradients are those of the global loss.

    In a step of the user's own that happens where the gradient is taken, see `gradients.py`.
    """

    def replacement(self, loss):
        step = steps.current()
        if step is None or not step.is_stock or id(self) in step.scaled:
            return original(self, loss)
        step.scaled.add(id(self))
        loss = tf.convert_to_tensor(loss)
        scaled = original(self, step.times(loss, weight_of(step, loss)))
        step.targets.append(scaled)
        return scaled

    return replacement


def apply(original):
    """Weights gradients that neither scale_loss nor a tape has weighted, and reduces before a loss scale's check."""

    def replacement(self, grads, trainable_variables=None):
        step = steps.current()
        if step is not None:
            reduce_before_clipping(type(self))
        if step is None:
            trainable_variables = None if trainable_variables is None else list(trainable_variables)
            require_step(trainable_variables or self._trainable_variables)
        if step is None or step.applying:
            return original(self, grads, trainable_variables)
        trainable_variables = None if trainable_variables is None else list(trainable_variables)
        variables = trainable_variables if trainable_variables is not None else list(self._trainable_variables)
        grads = with_shapes(of_shards(grads, variables), variables)
        if id(self) not in step.scaled:
            grads = weigh_rest(step, grads, variables)
        step.scaled.discard(id(self))
        if step.captured is not None:
            step.captured.append((self, grads, trainable_variables))
            return None
        return reduce_and_apply(original, self, step, grads, trainable_variables, variables)

    return replacement


def require_step(variables: list) -> None:
    """Refuses to update, outside of a model's step, variables whose gradients ranks have summed backward.

    Raises:
        ValueError: there is one.
    """
    summed = next((variable for variable in variables if is_summed_backward(variable)), None)
    if summed is not None:
        raise ValueError(
            f"keras-par: ranks with other rows divide '{summed.path}', so that its gradient is their sum already, "
            "which a loop by hand would sum once more: train by fit, by train_on_batch or by a train_step of the "
            "model's, or store it whole, by zero=2 or a layout without the batch axis."
        )


def weigh_rest(step: steps.Step, grads: list, variables: list) -> list:
    """`grads` with those weighted that were not computed by a tape in a step of the user's own, which does that."""
    known = step.binding.weighted_at_tape if not step.is_stock else frozenset()
    rest = [place for place, variable in enumerate(variables) if identity(variable) not in known]
    require_even(step, [variables[place] for place in rest])
    weight = step.binding.times(step.weight(tf.float64))
    for place in rest:
        grads[place] = scaled(grads[place], weight)
    return grads


def require_even(step: steps.Step, variables) -> None:
    """Refuses gradients that were summed over ranks with unequal numbers of rows before they could be weighted.

    Raises:
        ValueError: a variable is divided among these ranks, and their rows are not known to be as many.
    """
    summed = next((variable for variable in variables if is_summed_backward(variable)), None)
    if summed is not None and not isinstance(step.local, int):
        raise ValueError(
            f"keras-par: the gradient of '{summed.path}', which is divided along the batch axis, is summed over ranks "
            "with other numbers of rows: let the training step take the gradients of optimizer.scale_loss(loss), or "
            "give it batches that the ranks divide evenly (drop_remainder=True)."
        )


def apply_several(original):
    """Tells the optimizers that a MultiOptimizer hands its gradients to that their loss is weighted already."""

    def replacement(self, grads, trainable_variables=None):
        step = steps.current()
        if step is not None and id(self) in step.scaled:
            step.scaled.discard(id(self))
            step.scaled.update(id(each) for each in self.optimizers)
        return original(self, grads, trainable_variables)

    return replacement


def reduce_and_apply(original, optimizer, step: steps.Step, grads: list, trainable_variables, variables: list):
    """Runs an optimizer's own apply on weighted gradients, with the reduction where it belongs."""
    reduced = frozenset() if step.is_stock else frozenset(step.binding.summed_at_tape)
    if not step.is_stock:
        grads = same_rows.of_own_step(step, grads, variables)
    if accumulates(optimizer):
        grads, reduced = to_accumulate(step, grads, variables, reduced)
    elif isinstance(optimizer, LossScaleOptimizer):
        grads = step.binding.sum_gradients(step, grads, variables, but=reduced, to_parts=True)
        reduced = frozenset(map(identity, variables))
    with applying(step, reduced):
        return original(optimizer, grads, trainable_variables)


def to_accumulate(
    step: steps.Step, grads: list, variables: list, reduced: frozenset[int]
) -> tuple[list, frozenset[int]]:
    """What an optimizer that accumulates adds up, and the `identity`s of the variables whose sums are done then.

    Accumulators that ranks divide take this rank's parts of sums, the others what is not summed yet.
    """
    scattered = [placement_of(variable).is_scattered_at_once for variable in variables]
    rest = [not each for each in scattered]
    own = list(itertools.compress(variables, scattered))
    sums = step.binding.sum_gradients(step, list(itertools.compress(grads, scattered)), own, but=reduced, to_parts=True)
    parts = iter(own_part_of(gradient, variable) for gradient, variable in zip(sums, own, strict=True))
    others = list(itertools.compress(variables, rest))
    whole = iter(on_first_rank(step, list(itertools.compress(grads, rest)), others, reduced))
    grads = [next(parts) if each else next(whole) for each in scattered]
    return grads, frozenset(map(identity, own))


def on_first_rank(step: steps.Step, grads: list, variables: list, reduced: frozenset[int]) -> list:
    """`grads` with those that are reduced already made 0 on all ranks but one: accumulators add up over ranks."""
    if step.communicator.rank == 0:
        return grads
    own = [identity(variable) in reduced and not is_summed_backward(variable) for variable in variables]
    return [scaled(grad, 0.0) if is_own else grad for grad, is_own in zip(grads, own, strict=True)]


@contextlib.contextmanager
def applying(step, reduced: frozenset[int]):
    step.applying, step.reduced = True, reduced
    try:
        yield
    finally:
        step.applying, step.reduced = False, frozenset()


def accumulates(optimizer: BaseOptimizer) -> bool:
    """True if it adds up the gradients of several steps, so that those of one are not applied, nor to be reduced."""
    inner = optimizer.inner_optimizer if isinstance(optimizer, LossScaleOptimizer) else optimizer
    return bool(getattr(inner, "gradient_accumulation_steps", None))


def reduce_before_clipping(kind: type) -> None:
    """Lets an optimizer's class that clips in a way of its own have reduced gradients, as Keras's has."""
    owner = next(each for each in kind.__mro__ if "_clip_gradients" in vars(each))
    wrap(owner, "_clip_gradients", clip_gradients)


def clip_gradients(original):
    """Reduces what the optimizer is about to clip and apply, once; accumulation is done by then."""

    def replacement(self, grads):
        step = steps.current()
        if step is not None:
            grads = step.binding.sum_gradients(step, list(grads), targets(), but=step.reduced, to_parts=True)
            step.reduced |= frozenset(map(identity, targets()))
        return original(self, grads)

    return replacement


def overwrite(original):
    """Gives variables that take their gradients as values, float8's ranges, the largest of all ranks."""

    def replacement(self, grads, vars):
        step = steps.current()
        if step is not None:
            grads = newest_ranges(step, list(grads), list(grads), list(vars))
        return original(self, grads, vars)

    return replacement


def check_finite(original):
    """Where gradients accumulate they are not reduced yet, so the ranks agree on the check's result instead."""

    def replacement(self, grads):
        finite = original(self, grads)
        step = steps.current()
        if step is None or not accumulates(self):
            return finite
        [everywhere] = step.communicator.all_reduce([tf.cast(finite, tf.int32)], numbered("finite"), "min")
        return tf.cast(everywhere, tf.bool)

    return replacement
