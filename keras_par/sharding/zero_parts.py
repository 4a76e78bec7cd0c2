"""Parts of variables that ranks with other rows store alike but update in parts, as the first stage of ZeRO does.

Each rank gets its part of the sum of the gradients, updates its part of the value with its part of the optimizer's
state, and gets the other parts from the other ranks (Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training
Trillion Parameter Models", 2020).
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from keras_par.comm import call_site
from keras_par.comm.communicator import Communicator
from keras_par.comm.reducer import Gradient, sent_as
from keras_par.plan.buckets import fill_buckets
from keras_par.plan.layout import length_of, part_of
from keras_par.plan.options import Compression
from keras_par.sharding import prefetch_window
from keras_par.sharding import step as steps
from keras_par.sharding.collective_names import is_within_others, unique
from keras_par.sharding.collectives import from_gather, from_scatter, to_gather, to_scatter
from keras_par.sharding.variable_views import placement_of

BUCKET_BYTES = 16 << 20  # of values that are joined at once


def has_own_part(variable: Any) -> bool:
    """True if this rank updates a part of a variable that it stores, see `Placement.part_dim`."""
    return placement_of(variable).part_dim is not None


def own_part_of(tensor: Gradient, variable: Any) -> Gradient:
    """This rank's part of a tensor that is as large as what it stores of a variable; what is a part stays so."""
    dim = placement_of(variable).part_dim
    if tensor is None or dim is None:
        return tensor
    tensor, group = tf.convert_to_tensor(tensor), group_of(variable)
    if is_part(tensor, variable):
        return tensor
    part = part_of(tensor.shape[dim], group.size, group.rank)
    return tensor[(slice(None),) * dim + (part,)]


def is_part(tensor: Gradient, variable: Any) -> bool:
    """True for this rank's part of a tensor that would be as large as what it stores of a variable."""
    dim = placement_of(variable).part_dim
    return isinstance(tensor, tf.Tensor) and dim is not None and tensor.shape[dim] != stored_shape(variable)[dim]


def part_shape(variable: Any) -> tuple[int, ...]:
    """Of the part that this rank updates."""
    dim = placement_of(variable).part_dim
    shape = stored_shape(variable).as_list()
    if dim is not None:
        group = group_of(variable)
        shape[dim] = length_of(shape[dim], group.size, group.rank)
    return tuple(shape)


def stored_shape(variable: Any) -> tf.TensorShape:
    """Of what this rank stores of a variable's value."""
    return variable._value.shape


def group_of(variable: Any) -> Communicator:
    """The ranks that update a part each."""
    return variable.mesh.along(placement_of(variable).data_axis)


class Part:
    """This rank's part of a variable, as an optimizer reads and assigns it; `join` gives all ranks the new value.

    Args:
        variable: that has one, see `has_own_part`.
    """

    def __init__(self, variable: Any):
        self.variable, self.name = variable, variable.name
        self.value = tf.convert_to_tensor(own_part_of(variable._value, variable))

    @property
    def dtype(self) -> tf.DType:
        """Of the variable."""
        return self.value.dtype

    @property
    def shape(self) -> tf.TensorShape:
        """Of the part."""
        return self.value.shape

    def assign(self, value: Any) -> None:
        """As a variable's."""
        self.value = tf.cast(value, self.dtype)

    def assign_add(self, value: Any) -> None:
        """As a variable's."""
        self.value = self.value + tf.cast(value, self.dtype)

    def assign_sub(self, value: Any) -> None:
        """As a variable's."""
        self.value = self.value - tf.cast(value, self.dtype)

    def __mul__(self, other: Any) -> tf.Tensor:
        return self.value * other

    def __tf_tensor__(self, dtype=None, name=None):
        return tf.convert_to_tensor(self.value, dtype=dtype, name=name)


def buckets_of(variables: Sequence[Any]) -> list[list[int]]:
    """Which variables' parts are joined at once, by their places, the last first."""
    sizes = [bytes_of(variable._value) for variable in variables]
    kinds = [(variable._value.dtype, group_of(variable).ranks) for variable in variables]
    return fill_buckets(sizes, kinds, BUCKET_BYTES)


def bytes_of(value: tf.Variable) -> int:
    """Of what this rank stores."""
    return value.shape.num_elements() * value.dtype.size


def join(parts: Sequence[Part]) -> list[tf.Operation]:
    """Assigns to the variables of a bucket the parts of all ranks; returns what does. Costs one all-gather."""
    group = group_of(parts[0].variable)
    gathered = group.all_gather_equal([padded(part, group) for part in parts], unique("parts"))
    pairs = zip(parts, gathered, strict=True)
    done = [part.variable._value.assign(unpadded(rows, part, group), read_value=False) for part, rows in pairs]
    return [each for each in done if each is not None]


def padded(part: Part, group: Communicator) -> tf.Tensor:
    """A part as it is gathered, and as long as the longest one."""
    dim = placement_of(part.variable).part_dim
    assert dim is not None
    size = stored_shape(part.variable)[dim]
    rows = to_gather(part.value, dim, size, group.size)
    missing = length_of(size, group.size, 0) - part.shape[dim]
    return tf.pad(rows, [[0, missing], *[[0, 0]] * (rows.shape.rank - 1)]) if missing else rows


def unpadded(rows: tf.Tensor, part: Part, group: Communicator) -> tf.Tensor:
    """The value that `padded` parts of all ranks are of."""
    dim = placement_of(part.variable).part_dim
    assert dim is not None
    size = stored_shape(part.variable)[dim]
    if size % group.size:
        most = length_of(size, group.size, 0)
        lengths = [length_of(size, group.size, rank) for rank in range(group.size)]
        rows = tf.concat([rows[most * rank : most * rank + length] for rank, length in enumerate(lengths)], 0)
    return from_gather(rows, dim, size, group.size)


def scatter_gradients(
    pairs: Sequence[tuple[tf.Tensor | tf.IndexedSlices, Any]],
    name: str,
    limit: int,
    compression: Compression,
) -> list[tf.Tensor]:
    """This rank's parts of the sums of gradients. Costs one reduce-scatter for each bucket.

    Args:
        pairs: each gradient, as large as what a rank stores of the variable, and the variable, at least one.
        name: that of the collectives begins with it.
        limit: bytes of a bucket.
        compression: of what is sent.
    """
    group = group_of(pairs[0][1])
    gradients = [tf.convert_to_tensor(gradient) for gradient, _ in pairs]
    shapes = [stored_shape(variable) for _, variable in pairs]
    dims = [placement_of(variable).part_dim or 0 for _, variable in pairs]
    sizes = [shape.num_elements() * gradient.dtype.size for shape, gradient in zip(shapes, gradients, strict=True)]
    results: dict[int, tf.Tensor] = {}
    for number, bucket in enumerate(fill_buckets(sizes, [gradient.dtype for gradient in gradients], limit)):
        given = [to_scatter(tf.ensure_shape(gradients[i], shapes[i]), dims[i], group.size) for i in bucket]
        sums = group.reduce_scatter(given, f"{name}.{number}", sent_as(given[0].dtype, compression))
        for i, rows in zip(bucket, sums, strict=True):
            part = from_scatter(rows, dims[i], shapes[i][dims[i]], group.size)
            results[i] = tf.ensure_shape(part, part_shape(pairs[i][1]))
    return [results[i] for i in range(len(pairs))]


def scattered_backward(value: Any, variable: Any) -> Any:
    """A variable's value, whose gradient is scattered as soon as it is there if the variable lies so.

    That is in Keras's own step, for a variable that it reads once: the gradients of more are added first. What is not
    scattered here is when the gradients are applied. Costs one reduce-scatter backward.
    """
    if not placement_of(variable).is_scattered_at_once or tf.executing_eagerly() or is_within_others():
        return value
    reads, here = prefetch_window.current().reads, call_site.current()
    reads[id(variable)] = reads.get(id(variable), 0) + 1

    def backward(upstream):
        step = steps.current()
        if step is None or not step.sums_now or reads[id(variable)] > 1:
            return upstream
        with call_site.within(here):
            pairs, compression = [(upstream, variable)], step.binding.options.compression
            [part] = scatter_gradients(pairs, unique("gradients.part"), 1, compression)
        prefetch_window.current().scattered(part)
        return part

    @tf.custom_gradient
    def read(x):
        return tf.identity(x), backward

    return read(tf.convert_to_tensor(value))
