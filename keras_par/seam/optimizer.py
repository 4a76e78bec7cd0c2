"""Reduces gradients inside an optimizer's update: after accumulation, before clipping, once."""

import contextlib

import keras
import tensorflow as tf
from keras.src.optimizers.base_optimizer import BaseOptimizer
from keras.src.optimizers.loss_scale_optimizer import LossScaleOptimizer

from keras_par.seam import binding as bindings
from keras_par.seam import step as steps
from keras_par.seam.patch import wrap
from keras_par.seam.sharded_optimizer import targets
from keras_par.seam.views import is_summed, local_view


def install() -> None:
    """Wraps the optimizer methods that a step goes through."""
    for owner in (BaseOptimizer, LossScaleOptimizer):
        wrap(owner, "scale_loss", scale_loss)
        wrap(owner, "apply", apply)
    wrap(BaseOptimizer, "_clip_gradients", clip_gradients)
    wrap(LossScaleOptimizer, "check_finite", check_finite)
    if hasattr(keras.optimizers, "MultiOptimizer"):
        wrap(keras.optimizers.MultiOptimizer, "apply", apply_several)


def scale_loss(original):
    """Weights the loss by this rank's share of the rows, so that summed gradients are those of the global mean.

    A loss with a value for each row has the gradient of its sum, which needs no share.
    """

    def replacement(self, loss):
        step = steps.current()
        if step is not None and id(self) not in step.scaled:
            step.scaled.add(id(self))
            loss = tf.convert_to_tensor(loss)
            one = tf.ones([], loss.dtype)
            weight = step.binding.weight(step, loss.dtype) if loss.shape.rank == 0 else step.binding.times(one)
            loss = step.times(loss, weight)
        return original(self, loss)

    return replacement


def apply(original):
    """Weights gradients whose loss was not weighted, and reduces before a loss scale's finite check."""

    def replacement(self, grads, trainable_variables=None):
        step = steps.current()
        if step is None or step.applying:
            return original(self, grads, trainable_variables)
        trainable_variables = None if trainable_variables is None else list(trainable_variables)
        grads = with_shapes(self, grads, trainable_variables)
        if id(self) not in step.scaled:
            require_even(step, trainable_variables if trainable_variables is not None else self._trainable_variables)
            grads = bindings.weigh(grads, step.binding.weight(step, tf.float32))
        step.scaled.discard(id(self))
        if step.captured is not None:
            step.captured.append((self, grads, trainable_variables))
            return None
        return reduce_and_apply(original, self, step, grads, trainable_variables)

    return replacement


def require_even(step: steps.Step, variables) -> None:
    """Refuses gradients that were summed over ranks with unequal numbers of rows before they could be weighted.

    Raises:
        ValueError: a variable is divided among these ranks, and their rows are not known to be as many.
    """
    summed = next((variable for variable in variables if is_summed(variable)), None)
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


def with_shapes(optimizer, grads, trainable_variables) -> list:
    """`grads` with the static shapes of their variables, which some gradients lack but bucketing needs."""
    variables = trainable_variables if trainable_variables is not None else optimizer._trainable_variables
    grads, variables = list(grads), list(variables)
    with local_view():
        for grad, variable in zip(grads, variables, strict=True):
            if isinstance(grad, tf.Tensor) and not grad.shape.is_fully_defined():
                grad.set_shape(variable.shape)
    return grads


def reduce_and_apply(original, optimizer, step: steps.Step, grads, trainable_variables):
    """Runs an optimizer's own apply on weighted gradients, with the reduction where it belongs."""
    reduce_now = isinstance(optimizer, LossScaleOptimizer) and not accumulates(optimizer)
    if reduce_now:
        variables = trainable_variables if trainable_variables is not None else optimizer._trainable_variables
        grads = step.binding.sum_gradients(step, grads, variables)
    with applying(step, reduced=reduce_now):
        return original(optimizer, grads, trainable_variables)


@contextlib.contextmanager
def applying(step, reduced: bool):
    step.applying, step.reduced = True, reduced
    try:
        yield
    finally:
        step.applying = step.reduced = False


def accumulates(optimizer: LossScaleOptimizer) -> bool:
    return bool(getattr(optimizer.inner_optimizer, "gradient_accumulation_steps", None))


def clip_gradients(original):
    """Reduces what the optimizer is about to clip and apply; accumulation is done by then."""

    def replacement(self, grads):
        step = steps.current()
        if step is not None and not step.reduced:
            grads = step.binding.sum_gradients(step, list(grads), targets())
        return original(self, grads)

    return replacement


def check_finite(original):
    """Where gradients accumulate they are not reduced yet, so the ranks agree on the check's result instead."""

    def replacement(self, grads):
        finite = original(self, grads)
        step = steps.current()
        if step is None or step.reduced:
            return finite
        [everywhere] = step.communicator.all_reduce([tf.cast(finite, tf.int32)], step.name("finite"), "min")
        return tf.cast(everywhere, tf.bool)

    return replacement
