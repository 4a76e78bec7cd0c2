"""Tells what Keras's own losses give, and while a step is traced if its scalars are such, and need no probe."""

from collections.abc import Callable, Collection, Iterable
from typing import Any, Literal

import keras
import tensorflow as tf

from keras_par.keras_patches.rows.row_dims import is_symbolic
from keras_par.sharding.step import LossUnknown, Step

# What `Loss.call` gives: a value for each row, which other rows have no part in; the mean of such, or their sum; or
# something else, for which it needs the whole batch.
Kind = Literal["rows", "mean", "sum", "batch"]

# The axis along which functions work that may look across rows, unless they are told another; None for all.
AXIS = {
    keras.losses.circle: None,
    keras.losses.dice: None,
    keras.losses.tversky: None,
    keras.losses.cosine_similarity: -1,
}

# Through which a loss stays what it is, if the other inputs are numbers that no row has a part in.
LINEAR = ("Identity", "Cast", "Add", "AddV2", "AddN", "Sub", "Mul", "Neg", "Sum", "Mean", "Pack", "Reshape", "RealDiv")
NUMBERS = ("Const", "ReadVariableOp")
FEW = 16  # elements of a constant that may have a number of rows in it, as a shape


def own_kind(loss: keras.losses.Loss, num_dims: int = 0) -> Kind | None:
    """What a loss of Keras's making gives, None for others; its outputs have `num_dims`."""
    function: Any = getattr(loss, "fn", None)
    if not all(getattr(each, "__module__", "").startswith("keras.src.losses.") for each in (type(loss), function)):
        return None
    return "batch" if function in AXIS and looks_across_rows(function, loss._fn_kwargs, num_dims) else "rows"


def looks_across_rows(function: Callable, options: dict[str, Any], num_dims: int) -> bool:
    """True for a function of Keras's that works along dim 0 of tensors of `num_dims`, or takes them as a whole."""
    if "axis" not in options and function not in AXIS:
        return False
    axis = options.get("axis", AXIS.get(function))
    return any(each in (None, 0, -num_dims) for each in (axis if isinstance(axis, (list, tuple)) else [axis]))


def require_known(step: Step, tensors: Iterable[Any]) -> None:
    """Ends the trace of a step whose scalars must be known, if one is not what Keras's own losses gave.

    Where nobody can look at it, it is said that they are taken for means.

    Raises:
        LossUnknown: there is such a scalar.
    """
    if step.first_trace is None and not step.is_blind:
        return
    given = {id(loss) for loss in step.handled if loss.shape.rank == 0}
    rows = step.local if isinstance(step.local, int) and step.local > 1 else None
    if not are_made_of([each for each in tensors if is_symbolic(each) and not each.shape.rank], given, rows):
        if step.first_trace is not None:
            raise LossUnknown
        step.say(
            "whether the losses and logs of %s are means or sums over rows is not looked at where variables are "
            "divided, so that they are taken for means: the strategy's custom_loss says what they are",
            step.method,
        )


def are_made_of(tensors: list[tf.Tensor], given: set[int], rows: int | None) -> bool:
    """True if tensors are sums of `given` scalars, by their ids, times and plus what no row has a part in."""
    return terms(tensors, Numbers(rows).has, lambda tensor: id(tensor) in given, LINEAR) is not None


def terms(
    tensors: list[tf.Tensor],
    is_number: Callable[[tf.Tensor], bool],
    is_term: Callable[[tf.Tensor], bool],
    kinds: Collection[str],
) -> list[tf.Tensor] | None:
    """The terms that tensors are sums of, times and plus numbers; None if other `kinds` of operations make them."""
    found, seen, rest = [], set(), list(tensors)
    while rest:
        tensor = rest.pop()
        if id(tensor) in seen:
            continue
        seen.add(id(tensor))
        if is_term(tensor):
            found.append(tensor)
        if is_term(tensor) or is_number(tensor):
            continue
        inputs, kind = list(tensor.op.inputs), tensor.op.type
        if kind not in kinds or tensor.shape.rank is None or tensor.shape.rank > 1:
            return None
        factors = inputs if kind == "Mul" else inputs[1:] if kind == "RealDiv" else None
        if factors is not None and not any(map(is_number, factors)):
            return None
        rest += inputs
    return found


class Numbers:
    """Knows tensors that no row has a part in: they are made of constants and variables.

    Args:
        rows: what may be the number of rows where it is a constant; None if the batch's are not known while tracing.
    """

    def __init__(self, rows: int | None):
        self._rows = rows
        self._known: dict[tf.Operation, bool] = {}

    def has(self, tensor: tf.Tensor) -> bool:
        """True for such a tensor. Each operation is looked at once, without recursion: graphs are deep."""
        stack = [tensor.op]
        while stack:
            operation = stack[-1]
            is_pure = operation.type not in NUMBERS and not operation.op_def.is_stateful
            inputs = [each.op for each in operation.inputs] if is_pure else []
            found = [self._known.get(each) for each in inputs]
            if None in found and False not in found:
                stack.append(inputs[found.index(None)])
                continue
            self._known[operation] = False not in found if inputs else self._is_number(operation)
            stack.pop()
        return self._known[tensor.op]

    def _is_number(self, operation: tf.Operation) -> bool:
        """True for a variable, and for a constant that is not one or several times the number of rows."""
        if operation.type != "Const" or self._rows is None:
            return operation.type in NUMBERS
        tensor = operation.outputs[0]
        if not (tensor.dtype.is_integer or tensor.dtype.is_floating) or tensor.shape.num_elements() > FEW:
            return True
        value = tf.get_static_value(tensor)
        may_count = (value % self._rows == 0) & (value != 0) if tensor.dtype.is_integer else value == self._rows
        return not may_count.any()
