"""Reduces gradients inside an optimizer's update: after accumulation, before clipping, once."""

import contextlib

import tensorflow as tf
from keras.src.optimizers.base_optimizer import BaseOptimizer
from keras.src.optimizers.loss_scale_optimizer import LossScaleOptimizer

from keras_par.seam import binding as bindings
from keras_par.seam import step as steps
from keras_par.seam.patch import wrap


def install() -> None:
    """Wraps the optimizer methods that a step goes through."""
    for owner in (BaseOptimizer, LossScaleOptimizer):
        wrap(owner, "scale_loss", scale_loss)
        wrap(owner, "apply", apply)
    wrap(BaseOptimizer, "_clip_gradients", clip_gradients)
    wrap(LossScaleOptimizer, "check_finite", check_finite)


def find(optimizer):
    """(step, binding) if `optimizer` is updating a bound model inside a step, else (None, None)."""
    step, binding = steps.current(), bindings.of(optimizer)
    return (step, binding) if step is not None and binding is not None else (None, None)


def scale_loss(original):
    """Weights the loss by this rank's share of the rows, so that summed gradients are those of the global mean."""

    def replacement(self, loss):
        step, binding = find(self)
        if step is not None and id(self) not in step.scaled:
            step.scaled.add(id(self))
            loss = step.times(loss, binding.weight(step, loss.dtype))
        return original(self, loss)

    return replacement


def apply(original):
    """Weights gradients whose loss was not weighted, and reduces before a loss scale's finite check."""

    def replacement(self, grads, trainable_variables=None):
        step, binding = find(self)
        if step is None or step.applying:
            return original(self, grads, trainable_variables)
        trainable_variables = None if trainable_variables is None else list(trainable_variables)
        grads = with_shapes(self, grads, trainable_variables)
        if id(self) not in step.scaled:
            grads = bindings.weigh(grads, binding.weight(step, tf.float32))
        step.scaled.discard(id(self))
        if step.captured is not None:
            step.captured.append((self, grads, trainable_variables))
            return None
        return reduce_and_apply(original, self, step, binding, grads, trainable_variables)

    return replacement


def with_shapes(optimizer, grads, trainable_variables) -> list:
    """`grads` with the static shapes of their variables, which some gradients lack but bucketing needs."""
    variables = trainable_variables if trainable_variables is not None else optimizer._trainable_variables
    grads, variables = list(grads), list(variables)
    for grad, variable in zip(grads, variables, strict=True):
        if isinstance(grad, tf.Tensor) and not grad.shape.is_fully_defined():
            grad.set_shape(variable.shape)
    return grads


def reduce_and_apply(original, optimizer, step, binding, grads, trainable_variables):
    """Runs an optimizer's own apply on weighted gradients, with the reduction where it belongs."""
    reduce_now = isinstance(optimizer, LossScaleOptimizer) and not accumulates(optimizer)
    if reduce_now:
        grads = binding.sum_gradients(step, grads)
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
    return bool(optimizer.inner_optimizer.gradient_accumulation_steps)


def clip_gradients(original):
    """Reduces what the optimizer is about to clip and apply; accumulation is done by then."""

    def replacement(self, grads):
        step, binding = find(self)
        if step is not None and not step.reduced:
            grads = binding.sum_gradients(step, list(grads))
        return original(self, grads)

    return replacement


def check_finite(original):
    """Where gradients accumulate they are not reduced yet, so the ranks agree on the check's result instead."""

    def replacement(self, grads):
        finite = original(self, grads)
        step, _ = find(self)
        if step is None or step.reduced:
            return finite
        [everywhere] = step.communicator.all_reduce([tf.cast(finite, tf.int32)], step.name("finite"), "min")
        return tf.cast(everywhere, tf.bool)

    return replacement
