"""Cuts a global batch into this rank's rows, in the forms that a step can be traced for; joins what comes of them."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import tensorflow as tf
from keras import tree

from keras_par.comm.communicator import Communicator
from keras_par.keras_patches.inputs.components import Flag, components_with_rows, counting_component, is_like, num_rows
from keras_par.plan.options import Remainder
from keras_par.plan.rows import num_wrapped, row_range

# "exact": ranks may have unequal numbers of rows, which are weighted. "wrap": the batch's first rows are read again
# until every rank has as many. "drop": the rows that the number of ranks does not divide are left out.

# What a dataset yields. A traced function takes two tuples of equal length for the same type, so each kind has another
# number of fields.


class OwnBatch(NamedTuple):
    """A batch of a data set that was sharded before `fit`; how many rows the others have is not known here."""

    batch: Any


class EvenShard(NamedTuple):
    """This rank's rows of a global batch of which every rank has as many, a number known while tracing."""

    batch: Any
    even: tf.Tensor


class Shard(NamedTuple):
    """This rank's rows of a global batch, with the row counts here and on all ranks."""

    batch: Any
    local: tf.Tensor
    total: tf.Tensor


class ThinShard(NamedTuple):
    """A Shard whose batch may have fewer rows than there are ranks; `total` is None where only the ranks know it.

    A rank that has none of them gets one row as a stand-in, while `local` says 0: layers need not cope with an
    empty batch, which some of TensorFlow's kernels get wrong, and what the row does is undone or weighted by 0.
    """

    batch: Any
    local: tf.Tensor
    total: tf.Tensor | None
    has_rows: tf.Tensor


IRREGULAR = (tf.RaggedTensor, tf.SparseTensor)
KINDS = (OwnBatch, EvenShard, Shard, ThinShard)


class Batches(Iterator):
    """An iterator of shards in a list, which a rank has read already.

    Args:
        shards: of one of the kinds of shards.
        type_: that of all shards of their data set, which may leave sizes open that each shard has.
    """

    def __init__(self, shards: list, type_: Any):
        self.shards, self.type = shards, type_
        self._rest = iter(shards)

    def __next__(self):
        return next(self._rest)


def common_type(element_spec: Any, shard: Any) -> Any:
    """What a shard's type has in common with those of all others of a data set, by which a step is traced once.

    Args:
        element_spec: of the data set.
        shard: of the data set's kind, or a ThinShard made of an OwnBatch; then stand-ins of one row are among them.
    """
    batch = element_spec.batch
    if isinstance(element_spec, OwnBatch) and isinstance(shard, ThinShard):
        batch = tree.map_structure(with_stand_in, batch, zeros(element_spec).batch)
    return type(shard)(batch, *map(tf.type_spec_from_value, shard[1:]))


def with_stand_in(spec: tf.TypeSpec, row: Any) -> tf.TypeSpec:
    return spec if row is None else spec.most_specific_common_supertype([tf.type_spec_from_value(row)])


def shard_of(kind: type, batch: Any, local, total) -> EvenShard | Shard | ThinShard:
    if kind is EvenShard:
        return EvenShard(batch, tf.constant(True))
    local, total = tf.cast(local, tf.int64), tf.cast(total, tf.int64)
    if kind is Shard:
        return Shard(batch, local, total)
    # Of a constant TensorFlow would make others, and ask other ranks for their sums while it optimizes the graph.
    local = tf.raw_ops.PlaceholderWithDefault(input=local, shape=[])
    return ThinShard(batch, local, total, local > 0)


def filled_up(batches: list[OwnBatch], num_missing: int, stand_in: OwnBatch | None) -> list[ThinShard]:
    """A rank's own batches, and a stand-in without rows for each that only other ranks have."""

    def thin(own: Any, has_rows: bool) -> ThinShard:
        local = num_rows(counting_component(own.batch)) if has_rows else tf.constant(0, tf.int64)
        return ThinShard(own.batch, tf.cast(local, tf.int64), None, tf.constant(has_rows))

    return [thin(batch, True) for batch in batches] + [thin(stand_in, False) for _ in range(num_missing)]


def first_row(own: OwnBatch) -> OwnBatch:
    """The first row of a batch, to stand in where a rank has none; what is no rows stays whole."""
    first = counting_component(own.batch)
    return OwnBatch(tree.map_structure(lambda leaf: take(leaf, 0, 1) if is_like(leaf, first) else leaf, own.batch))


def zeros(spec: OwnBatch) -> OwnBatch:
    """One row of zeros and empty strings of a batch's type, with 1 for each size that the type leaves open."""
    first = counting_component(spec.batch)
    row = tree.map_structure(lambda leaf: zero_row(leaf) if is_like(leaf, first) else all_zero(leaf), spec.batch)
    return OwnBatch(row)


def all_zero(spec: tf.TypeSpec):
    """Zeros for what is no rows."""
    return tf.zeros([size or 1 for size in spec.shape], spec.dtype) if isinstance(spec, tf.TensorSpec) else None


def zero_row(spec: tf.TypeSpec):
    """One row of zeros for `zeros`; a ragged one is empty."""
    if isinstance(spec, tf.RaggedTensorSpec):
        values = tf.zeros([0, *(size or 1 for size in spec.shape[spec.ragged_rank + 1 :])], spec.dtype)
        no_rows = [tf.zeros([0], spec.row_splits_dtype)] * (spec.ragged_rank - 1)
        return tf.RaggedTensor.from_nested_row_lengths(values, [tf.zeros([1], spec.row_splits_dtype), *no_rows])
    if not isinstance(spec, (tf.TensorSpec, tf.SparseTensorSpec)):
        return None
    row = tf.zeros([1, *(size or 1 for size in spec.shape[1:])], spec.dtype)
    return tf.sparse.from_dense(row) if isinstance(spec, tf.SparseTensorSpec) else row


# For functions that tf.data calls: without control flow of Python's there is nothing to convert, which takes 0.1 s.
as_it_is = tf.autograph.experimental.do_not_convert


def cut(
    batch: Any, num_shards: int, shard_id: int, remainder: Remainder = "exact", history: Any = None, kind: Any = None
) -> EvenShard | Shard | ThinShard:
    """This rank's contiguous rows of a global batch, a nest of tensors (dense, ragged or sparse) and Nones.

    Components that do not have the batch's rows stay whole, see `components_with_rows`.

    Args:
        history: the `History` of the data set, None for a single batch.
        kind: EvenShard, Shard or ThinShard if it is known that all batches make this, None if their type tells.
    """
    batch = tree.map_structure(none_for_optional, batch)
    first = counting_component(batch)
    known = first.shape[0]
    total = known if known is not None else num_rows(first)
    flags = components_with_rows(batch, total, history)
    if remainder != "exact" and not (known is not None and known % num_shards == 0):
        batch, total = evened(batch, flags, total, num_shards, remainder)
    start, stop = row_range(total, num_shards, shard_id)
    if kind is None:
        is_even = isinstance(first, tf.Tensor) and known is not None and known > 0 and known % num_shards == 0
        is_thin = remainder == "exact" and (known is None or known < num_shards)
        kind = EvenShard if is_even else ThinShard if is_thin else Shard
    end = tf.maximum(stop, start + 1) if kind is ThinShard else stop
    leaves = [component(*each, start, end) for each in zip(tree.flatten(batch), flags, strict=True)]
    return shard_of(kind, tree.pack_sequence_as(batch, leaves), stop - start, total)


def component(leaf, flag: Flag, start, end):
    """Rows [start, end) of a component that has the batch's rows, all of another."""
    if isinstance(flag, bool):
        return take(leaf, start, end) if flag else leaf
    zero, own = tf.constant(0, tf.int64), num_rows(leaf)
    start, end = tf.cast(start, tf.int64), tf.cast(end, tf.int64)
    return take(leaf, tf.where(flag, start, zero), tf.where(flag, end, own))


def evened(batch: Any, flags: list[Flag], total, num_shards: int, remainder: Remainder) -> tuple[Any, Any]:
    """The batch with rows repeated or dropped until `num_shards` divides their number, and that number.

    Raises:
        ValueError: rows of a sparse tensor would have to be repeated.
    """
    if remainder == "drop":
        return batch, total // num_shards * num_shards
    wrapped = num_wrapped(total, num_shards) * num_shards
    numbers = tf.range(tf.cast(wrapped, tf.int64)) % tf.cast(total, tf.int64)
    if any(isinstance(leaf, tf.SparseTensor) for leaf in tree.flatten(batch)):
        raise ValueError(
            "keras-par: remainder='wrap' cannot repeat the rows of a sparse tensor: use 'exact' or 'drop'."
        )

    def repeated(leaf, flag: Flag):
        if isinstance(flag, bool):
            return tf.gather(leaf, numbers) if flag else leaf
        return tf.gather(leaf, tf.cond(flag, lambda: numbers, lambda: tf.range(num_rows(leaf))))

    leaves = [repeated(*each) for each in zip(tree.flatten(batch), flags, strict=True)]
    return tree.pack_sequence_as(batch, leaves), wrapped


def none_for_optional(leaf):
    """None for the empty Optional by which Keras carries a missing component of a generator's batch through tf.data."""
    return None if isinstance(leaf, tf.experimental.Optional) else leaf


def take(leaf, start, stop):
    """Rows [start, stop) of a dense, ragged or sparse tensor, in memory of their own.

    A slice of a tensor that a generator gave is NumPy's memory. TensorFlow takes the slice for its own, so that the
    next operation of the graph may write its result there, into the user's array.
    """
    if isinstance(leaf, tf.SparseTensor):
        start, stop = tf.cast(start, tf.int64), tf.cast(stop, tf.int64)
        begin = tf.concat([[start], tf.zeros([leaf.shape.rank - 1], tf.int64)], 0)
        length = tf.concat([[stop - start], leaf.dense_shape[1:]], 0)
        rows = tf.sparse.slice(leaf, begin, length)
        rows.set_shape([None, *leaf.shape[1:]])  # which the slice forgets
        return rows
    return tf.gather(leaf, tf.range(start, stop))


def as_tensor(value: Any) -> Any:
    """`value` as a tensor; ragged and sparse ones stay what they are."""
    return value if isinstance(value, IRREGULAR) else tf.convert_to_tensor(value)


def gather_rows(communicator: Communicator, output: Any, name: str, count: Any) -> Any:
    """The first `count` rows of a tensor on each rank (None: all), in rank order.

    Costs one all-gather, of a ragged tensor one more for each ragged dim, of a sparse one two more.

    Args:
        communicator: the ranks that have other rows.
        output: a dense, ragged or sparse tensor, whose dim 0 is rows.
        name: the collective's.
        count: rows that are no stand-ins.
    """
    if isinstance(output, tf.RaggedTensor):
        rows = output[:count]
        lengths = [
            communicator.all_gather(each, f"{name}.lengths{dim}") for dim, each in enumerate(rows.nested_row_lengths())
        ]
        values = communicator.all_gather(rows.flat_values, name)
        return tf.RaggedTensor.from_nested_row_lengths(values, lengths)
    if isinstance(output, tf.SparseTensor):
        return gather_sparse(communicator, output if count is None else take(output, 0, count), name)
    return communicator.all_gather(output[:count], name)


def gather_sparse(communicator: Communicator, rows: tf.SparseTensor, name: str) -> tf.SparseTensor:
    """The ranks' sparse rows below each other."""
    counts = communicator.all_gather(tf.reshape(num_rows(rows), [1]), f"{name}.rows")
    before = tf.reduce_sum(counts[: communicator.rank])
    shift = tf.one_hot(0, tf.shape(rows.indices)[1], before, tf.constant(0, tf.int64), dtype=tf.int64)
    indices = communicator.all_gather(rows.indices + shift, f"{name}.indices")
    values = communicator.all_gather(rows.values, name)
    return tf.SparseTensor(indices, values, tf.concat([[tf.reduce_sum(counts)], rows.dense_shape[1:]], 0))


def joined(batches: list) -> Any:
    """Rows of several batches below each other."""
    return tf.sparse.concat(0, batches) if isinstance(batches[0], tf.SparseTensor) else tf.concat(batches, 0)
