"""Tells which components of an element have the batch's rows, so that a table or a scalar beside them stays whole."""

from typing import Any, TypeAlias

import tensorflow as tf
from keras import tree

from keras_par.comm.agreed import AgreedValueError

Flag: TypeAlias = bool | tf.Tensor  # that a component has the batch's rows, a tensor if only running tells
AMBIGUOUS = (
    "keras-par: the parts of an element have unequal first dims, and which of them counts the rows of the batch is "
    "not clear: give the rows targets, as (x, y), of which every part and a part of x have one for each row; what has "
    "none for each row, such as a constant table, may then stand beside them in x."
)
CHANGED = (
    "keras-par: a part of the elements had as many entries as the batch had rows, and in a later batch another number, "
    "so that it was cut as rows and may be none: give its first dim another size, such as by one more dim of size 1."
)


def complaint_in(error: Exception) -> AgreedValueError | None:
    """What an operation that failed said of elements, which all ranks find in the same batch; None for other errors."""
    if not isinstance(error, tf.errors.InvalidArgumentError):
        return None
    return next((AgreedValueError(said) for said in (AMBIGUOUS, CHANGED) if said in str(error)), None)


def counting_component(batch: Any):
    """The component whose entries count an element's rows: the first of the targets, else of all, that has dims."""
    components = [leaf for group in (targets_of(batch), batch) for leaf in tree.flatten(group) if leaf is not None]
    return next((leaf for leaf in components if has_dims(leaf)), components[0])


def targets_of(batch: Any) -> Any:
    """What Keras takes for targets, None if there are none."""
    return batch[1] if isinstance(batch, tuple) and len(batch) > 1 else None


def has_dims(leaf: Any) -> bool:
    """False for a scalar, and for what has no shape."""
    shape = getattr(leaf, "shape", None)
    return shape is not None and len_of(shape) != 0


def len_of(shape: Any) -> int | None:
    return shape.rank if isinstance(shape, tf.TensorShape) else len(shape)


def num_rows(leaf) -> tf.Tensor:
    """The size of the first dim of a dense, ragged or sparse tensor."""
    if isinstance(leaf, tf.RaggedTensor):
        return leaf.nrows()
    if isinstance(leaf, tf.SparseTensor):
        return leaf.dense_shape[0]
    return tf.shape(leaf, out_type=tf.int64)[0]


def is_like(leaf: Any, first: Any) -> bool:
    """True if a component's first dim is known, or not known, as that of the component which counts rows."""
    return has_dims(leaf) and leaf.shape[0] == first.shape[0]


class History:
    """Which components of a dataset's elements are rows, as the first one shows, in a function that maps it in order.

    Args:
        spec: of the dataset's elements.
    """

    def __init__(self, spec: Any):
        with tf.device("cpu"):
            self._flags = tf.Variable(tf.zeros([len(tree.flatten(spec))], tf.bool), trainable=False)
            self._has_begun = tf.Variable(tf.constant(False), trainable=False)

    def settled(self, flags: list[tf.Tensor], clear: Flag) -> list[tf.Tensor]:
        """What the first element's `flags` were; fails at run time where a component was taken for rows, and is none.

        Args:
            flags: of the components of which only running tells.
            clear: if they are as they can be.
        """
        found = tf.stack(flags)
        before, has_begun = self._flags[: len(flags)], tf.identity(self._has_begun)

        def look():
            tf.debugging.Assert(clear, [AMBIGUOUS])
            tf.debugging.Assert(tf.reduce_all(found | ~before), [CHANGED])
            with tf.control_dependencies([self._flags[: len(flags)].assign(tf.where(has_begun, before, found))]):
                return tf.group(self._has_begun.assign(True))

        tf.cond(has_begun & tf.reduce_all(found == before), tf.no_op, look)
        return tf.unstack(tf.where(has_begun, before, found))


def components_with_rows(batch: Any, total: Any, history: History | None = None) -> list[Flag]:
    """For each component of an element whether its entries are the batch's rows, decided at run time where need be.

    Raises:
        AgreedValueError: which component counts the rows is not clear; an operation fails if only running tells.
    """
    first, leaves = counting_component(batch), tree.flatten(batch)
    targets = tree.flatten(targets_of(batch))
    are_targets = [any(leaf is each for each in targets) for leaf in leaves]
    inputs = [leaf for leaf, is_target in zip(leaves, are_targets, strict=True) if not is_target and has_dims(leaf)]
    is_open = first.shape[0] is None and any(leaf.shape[0] is None for leaf in inputs)
    fixed = [leaf for leaf in inputs if is_open and leaf.shape[0] is not None]  # while batches may have any size
    flags = [not any(leaf is each for each in fixed) and has_rows(leaf, first, total) for leaf in leaves]
    clear, open_ones = is_clear(leaves, flags, are_targets), [flag for flag in flags if not isinstance(flag, bool)]
    if clear is False:
        raise AgreedValueError(AMBIGUOUS)
    if not open_ones:
        return flags
    if history is None:
        tf.debugging.Assert(clear, [AMBIGUOUS])
        return flags
    settled = iter(history.settled(open_ones, clear))
    return [flag if isinstance(flag, bool) else next(settled) for flag in flags]


def has_rows(leaf: Any, first: Any, total: Any) -> Flag:
    if leaf is None or not has_dims(leaf):
        return False
    if leaf is first:
        return True
    if leaf.shape[0] is not None and first.shape[0] is not None:
        return leaf.shape[0] == first.shape[0]
    return tf.equal(num_rows(leaf), tf.cast(total, tf.int64))


def is_clear(leaves: list, flags: list[Flag], are_targets: list[bool]) -> Flag:
    """True if all targets and a component of the inputs have rows, or without targets all that are no scalars."""
    with_dims = [i for i, leaf in enumerate(leaves) if leaf is not None and has_dims(leaf)]
    sure = [flags[i] for i in with_dims if are_targets[i]]
    inputs = [flags[i] for i in with_dims if not are_targets[i]]
    if not sure:
        return every(inputs)
    return every([*sure, some(inputs)]) if inputs else every(sure)


def every(flags: list[Flag]) -> Flag:
    if False in [flag for flag in flags if isinstance(flag, bool)]:
        return False
    open_ones = [flag for flag in flags if not isinstance(flag, bool)]
    return tf.reduce_all(tf.stack(open_ones)) if open_ones else True


def some(flags: list[Flag]) -> Flag:
    if True in [flag for flag in flags if isinstance(flag, bool)]:
        return True
    open_ones = [flag for flag in flags if not isinstance(flag, bool)]
    return tf.reduce_any(tf.stack(open_ones)) if open_ones else False
