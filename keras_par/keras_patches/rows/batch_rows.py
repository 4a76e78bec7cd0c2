"""Where this rank's rows lie in the global batch, and which dims of a draw inside a step are rows."""

import contextlib
import inspect
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from keras import tree

from keras_par.comm.communicator import Communicator
from keras_par.comm.differentiable import kept
from keras_par.keras_patches.inputs.components import counting_component, is_like, num_rows
from keras_par.keras_patches.inputs.shards import OwnBatch, ThinShard
from keras_par.keras_patches.rows.row_dims import (
    ALIKE,
    BRANCHES,
    OTHER,
    UNSURE,
    Known,
    RowDims,
    Rows,
    is_symbolic,
    sizes_of,
)
from keras_par.plan.rows import row_range
from keras_par.sharding import step as steps
from keras_par.sharding.tensor import ShardedTensor


class RowCount(int):
    """A number of places that rows of the batch have, known while tracing; what `keras.ops.shape` gives in a step.

    To everything that takes a number it is the `int` that it is in one process.
    """

    dtype = int  # Keras asks for `getattr(number, "dtype", type(number))`
    runs: tuple[int, ...]

    def __new__(cls, value: int, runs: tuple[int, ...]):
        self = super().__new__(cls, value)
        self.runs = runs
        return self

    def __array_ufunc__(self, ufunc, method, *inputs, **kwargs):
        return getattr(ufunc, method)(*plain(inputs), **kwargs)

    def __array_function__(self, function, types, args, kwargs):
        return function(*plain(args), **plain(kwargs))

    def __reduce__(self):
        return int, (int(self),)

    def __mul__(self, other):
        product = super().__mul__(other)
        is_number = type(other) is int and other > 0
        return RowCount(product, tuple(run * other for run in self.runs)) if is_number else product

    __rmul__ = __mul__

    def __floordiv__(self, other):
        quotient = super().__floordiv__(other)
        divides = type(other) is int and other > 0 and not any(run % other for run in self.runs)
        return RowCount(quotient, tuple(run // other for run in self.runs)) if divides else quotient


def plain(nest: Any) -> Any:
    """A nest whose numbers of rows are integers like others."""
    return tree.map_structure(lambda leaf: int(leaf) if isinstance(leaf, RowCount) else leaf, nest)


class BatchRows:
    """The rows of one step, valid while its Python code runs.

    Args:
        here: an int or a scalar int64 tensor, rows of the tensors of the batch, with a stand-in's.
        total: rows of the batch on all ranks.
        start: returns the number of the first of them on this rank, in the graph of the step; asked once.
        leaves: the tensors of the batch; None in a function whose arguments they are.
        gathers_rows: True if an all-gather joins the rows of all ranks.
    """

    def __init__(self, here, total, start, leaves: list[tf.Tensor] | None, gathers_rows: bool = True):
        self.here, self.total = here, total
        self._start = start
        self._found_start = None
        roots = None if leaves is None else [leaf for leaf in leaves if is_symbolic(leaf)]
        self.dims = RowDims(roots, gathers_rows)
        self.graph = None if tf.executing_eagerly() or leaves is None else tf.compat.v1.get_default_graph()
        self.blocks: Any = None  # how far the counter of the draw under way is moved on

    @property
    def start(self):
        """The number of this rank's first row in the global batch."""
        if self._found_start is None:
            with contextlib.ExitStack() as stack:
                if self.graph is not None:  # the code under way may be in a branch or a loop
                    stack.enter_context(self.graph.as_default())
                    stack.enter_context(tf.control_dependencies(None))
                self._found_start = self._start()
        return self._found_start

    @property
    def is_reached(self) -> bool:
        """True if values of the step can be used here: not in a function that is called with other values."""
        graph = tf.compat.v1.get_default_graph()
        while self.graph is not None and graph is not self.graph and type(graph).__name__ in BRANCHES:
            graph = graph.outer_graph
        return self.graph is None or graph is self.graph

    def of(self, tensor: Any) -> Known:
        """What is known of the rows of a tensor."""
        if isinstance(tensor, ShardedTensor):
            return self.of(tensor.local)
        if not isinstance(tensor, tf.Tensor):
            return ALIKE
        if is_symbolic(tensor):
            return self.dims.of(tensor)
        return UNSURE if self.graph is None and tensor.shape.rank else ALIKE

    def size(self, known: Known, static: int | None) -> Known:
        """What is known of a dim's size, with what its number tells where the way to it was not followed."""
        if static is None or not isinstance(self.here, int):
            return known
        if isinstance(known, Rows):
            times, rest = divmod(static, sum(known.runs) * self.here)
            if rest or not times or (times > 1 and known.is_exact):
                return OTHER
            return Rows(tuple(run * times for run in known.runs))
        if known is UNSURE:
            return Rows((static // self.here,)) if static and static % self.here == 0 else OTHER
        return known

    def mark(self, tensor: Any, shape: tuple) -> tuple:
        """`shape` of a tensor, as `keras.ops.shape` gives it, with its numbers of rows marked."""
        sizes = zip(shape, sizes_of(tensor, self.of(tensor)), strict=True)
        found = [(number, self.size(known, number) if isinstance(number, int) else known) for number, known in sizes]
        return tuple(
            RowCount(number, known.runs) if isinstance(number, int) and isinstance(known, Rows) else number
            for number, known in found
        )

    def elements(self, shape: Any) -> list[Known]:
        """What is known of each number of a shape, a tensor or what can become one."""
        if isinstance(shape, (list, tuple)):
            return [self._element(number) for number in shape]
        if is_symbolic(shape):
            return [self.size(*each) for each in zip(self.dims.sizes(shape), known_sizes(shape), strict=True)]
        numbers = [int(number) for number in tf.convert_to_tensor(shape)]
        return [self.size(UNSURE if place == 0 else OTHER, number) for place, number in enumerate(numbers)]

    def _element(self, number: Any) -> Known:
        if isinstance(number, RowCount):
            return self.size(Rows(number.runs), int(number))
        if not isinstance(number, tf.Tensor):
            return ALIKE
        if not is_symbolic(number):
            return self.size(UNSURE, int(number))
        static = tf.get_static_value(number)
        return self.size(self.dims.sizes(number)[0], None if static is None else int(static))


def known_sizes(shape: tf.Tensor) -> list[int | None]:
    """The numbers of a shape in a graph that are known while tracing."""
    return tf.raw_ops.Fill(dims=shape, value=0).shape.as_list()


class ArgumentRows(BatchRows):
    """The rows of a function that is traced once for all batches and takes them as its only arguments.

    Args:
        state: a variable of three numbers: rows here, rows on all ranks, the number of the first one here.
    """

    def __init__(self, state: tf.Variable, gathers_rows: bool = True):
        self._state = state
        super().__init__(None, None, None, None, gathers_rows)

    here = property(lambda self: self._state[0], lambda self, value: None)
    total = property(lambda self: self._state[1], lambda self, value: None)
    start = property(lambda self: self._state[2])


def batch_rows(communicator: Communicator, data, total, name: Callable[[str], str], gathers_rows: bool) -> BatchRows:
    """The rows of a step on this rank's `data`, one of `KINDS`.

    Where only the ranks know their rows, the first draw costs one all-reduce of a number for each rank.

    Args:
        communicator: of the ranks that have other rows.
        data: this rank's.
        total: rows on all ranks.
        name: gives collectives of the step a name.
        gathers_rows: True if an all-gather joins the rows of all ranks.
    """
    leaf = counting_component(data.batch)
    static = leaf.shape[0] if isinstance(leaf, tf.Tensor) else None
    here = num_rows(leaf) if static is None else static
    if tf.executing_eagerly():
        here, total = int(here), int(total)

    def start():
        if not isinstance(data, OwnBatch) and getattr(data, "total", total) is not None:
            return row_range(total, communicator.size, communicator.rank)[0]
        own = data.local if isinstance(data, ThinShard) else num_rows(leaf)
        [counts] = communicator.all_reduce([tf.one_hot(communicator.rank, communicator.size, own)], name("first_row"))
        first = kept(tf.reduce_sum(counts[: communicator.rank]), counts)
        return int(first) if tf.executing_eagerly() else first

    rows = BatchRows(here, total, start, tensors_like(leaf, data.batch), gathers_rows)
    for each in tree.flatten(data.batch):
        if is_symbolic(each) and not is_like(each, leaf):
            rows.dims.note(each, ALIKE)
    return rows


def compiled_rows(batch, total, start) -> BatchRows:
    """The rows of a step that XLA compiles, whose function takes them as arguments."""
    leaf = counting_component(batch)
    here = num_rows(leaf) if leaf.shape[0] is None else leaf.shape[0]
    return BatchRows(here, total, lambda: start, tensors_like(leaf, batch))


def rows_of_step() -> BatchRows | None:
    """The rows of the step whose code is running, None where its draws are not shared among ranks."""
    step = steps.current()
    if step is None or step.rows is None or step.communicator.size == 1:
        return None
    built_eagerly = tf.executing_eagerly() and step.rows.graph is not None  # as variables are inside of a step
    return None if built_eagerly else step.rows


def tensors_like(leaf, batch) -> list[tf.Tensor]:
    """The dense parts of a batch that may have the rows of `leaf`."""
    return [each for each in tree.flatten(batch) if isinstance(each, tf.Tensor) and is_like(each, leaf)]


def predicted_rows(communicator: Communicator, data, total, state: tf.Variable, gathers_rows: bool) -> BatchRows:
    """The rows of the next batch to predict, which `state` gets for the function that was traced with it."""
    rows = batch_rows(communicator, data, total, lambda kind: f"kp.predict.{kind}", gathers_rows)
    state.assign([rows.here, rows.total, rows.start])
    return ArgumentRows(state, gathers_rows)


def marked_shape(original):
    """In a step the numbers of rows in the shape of a tensor are known as such."""

    def replacement(x):
        rows = rows_of_step()
        shape = original(x)
        is_value = isinstance(x, tf.Tensor)
        return rows.mark(x, shape) if rows is not None and is_value and isinstance(shape, tuple) else shape

    return replacement


def noted_constant(original):
    """Where TensorFlow puts a constant for a tensor's shape, or for what it makes of a shape, its rows are known."""
    first = next(iter(inspect.signature(original).parameters))

    def replacement(*args, **kwargs):
        result = original(*args, **kwargs)
        rows, given = rows_of_step(), args[0] if args else kwargs[first]
        if rows is None or not is_symbolic(result):
            return result
        if original.__name__.startswith("shape"):
            if is_symbolic(given) and result.op.type == "Const":
                rows.dims.note_shape(result, given)
        elif first == "input":
            if is_symbolic(given):
                rows.dims.note(result, rows.of(given))
        elif isinstance(given, (list, tuple)):
            found = [known.at(dim) for dim, known in enumerate(rows.elements(given)) if isinstance(known, Rows)]
            if len(found) == 1:
                rows.dims.note(result, found[0])
        return result

    return replacement
