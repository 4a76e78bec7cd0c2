"""Computes the scalars of a step on rank 0 for both halves of a batch and for all of it, and judges what they are.

What a step changes is pruned from the graph that does this, so that neither variables nor seeds move; only a loss that
itself waits for a change makes it.
"""

from collections.abc import Callable, Iterable
from typing import Any, Literal, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from keras_par.keras_patches.inputs.gather_outputs import as_tensor
from keras_par.keras_patches.inputs.row_parts import counting_part, num_rows
from keras_par.keras_patches.rows.row_dims import ALIKE, RowDims, is_symbolic
from keras_par.keras_patches.step.batch_normalization import is_synchronized
from keras_par.keras_patches.step.metrics import layers
from keras_par.keras_patches.step.number_kinds import Key, in_logs, is_number, keys_of_metrics, reduced_by
from keras_par.keras_patches.trainer import function_caches
from keras_par.keras_patches.trainer.row_probe import LoneCommunicator, some_rows
from keras_par.keras_patches.trainer.step_program import Program
from keras_par.keras_patches.update.gradients import OF_BATCH
from keras_par.plan.options import Reduction
from keras_par.sharding.step import Probe, Step

CLOSE, HALF_CLOSE, NEAR = 1e-3, 5e-2, 0.15  # relative distances: that rounding explains, of 16 bits, random numbers
HALF = {tf.float16, tf.bfloat16}
RANDOM = ("Random", "Multinomial", "Bernoulli", "Gamma", "Poisson")
READS = ("Placeholder", "VarHandleOp", "ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VarIsInitializedOp")


class Seen(NamedTuple):
    """A scalar of a step.

    Args:
        of_all: its value for all rows.
        first: for their first half.
        second: for the other.
        kind: "mean", "sum", "neither", or None if that is not clear.
        key: of a number that the step keeps or returns; None for a loss of which it takes gradients.
    """

    of_all: float
    first: float
    second: float
    kind: Literal["mean", "sum", "neither"] | None
    key: Key | None = None


def scalars_of(program: Program, batch: Any) -> list[Seen] | None:
    """What the scalars of a step are, of which rank 0's rows of a batch are cut in two; None if they cannot be.

    Of a number whose values do not tell it, what the graph tells. A number may be there several times.
    """
    leaves = [leaf for leaf in keras.tree.flatten(batch) if leaf is not None]
    if batch is None or not all(isinstance(leaf, (tf.Tensor, np.ndarray)) for leaf in leaves):
        return None
    leaves = [tf.convert_to_tensor(leaf) for leaf in leaves]
    given = int(num_rows(as_tensor(counting_part(batch))))
    half = given // 2
    try:
        traces = [Trace(program, batch, leaves, given, None)] * 2
    except Exception:  # a step that needs the number of rows while it is traced
        traces = [Trace(program, batch, leaves, given, count) for count in (2 * half, half) if count]
    if not traces or traces[0].alone.asked_by_ops:  # what takes other ranks' rows is made for ranks
        return None
    of_all, of_half = traces

    def compared(halves: Iterable[list[tf.Tensor]], tolerance: float) -> list[Seen]:
        parts = [of_half.values(rows, half, 2 * half) for rows in halves]
        seen = zip(whole, *parts, of_all.keys, strict=True)
        return [Seen(a, b, c, judged(a, b, c, tolerance), key) for a, b, c, key in seen]

    found: list[Seen] = []
    if half:
        whole = of_all.values(some_rows(leaves, given, 0, 2 * half), 2 * half, 2 * half)
        neighbours = (some_rows(leaves, given, i * half, (i + 1) * half) for i in range(2))
        found = compared(neighbours, of_all.tolerance)
    if half and of_all.tolerance == NEAR:
        # Near to a sum may be chance, which other halves, of every other row, hardly repeat.
        again = compared((every_other(leaves, given, i, 2 * half) for i in range(2)), NEAR)
        found = [
            each if each.kind == other.kind != "neither" else each._replace(kind=None)
            for each, other in zip(found, again, strict=True)
        ]
    clear = [each for each in found if each.kind is not None or each.key is None]
    known = {each.key for each in clear}
    return [*clear, *(each for each in of_all.told if each.key not in known)]


class Trace:
    """A graph of a step's scalars.

    Args:
        program: of the step.
        batch: whose structure it takes.
        leaves: the tensors in that.
        given: their number of rows.
        num_rows: of what it is called with, None for any.
    """

    def __init__(self, program: Program, batch: Any, leaves: list[tf.Tensor], given: int, num_rows: int | None):
        self.alone = LoneCommunicator()
        self.keys: list[Key | None] = []
        self.told: list[Seen] = []  # numbers of which the graph tells something, while their values may not
        structure = keras.tree.map_structure(lambda leaf: None if leaf is None else 0, batch)
        places = [place for place, leaf in enumerate(keras.tree.flatten(batch)) if leaf is not None]
        has_rows = [bool(leaf.shape.rank) and leaf.shape[0] == given for leaf in leaves]

        def trace(local, total, *leaves):
            flat: list = [None] * len(keras.tree.flatten(structure))
            for place, leaf in zip(places, leaves, strict=True):
                flat[place] = leaf
            probe = Probe()
            step = Step(
                program.binding,
                local,
                total,
                thin=False,
                captured=[],
                probe=probe,
                communicator=self.alone,
                method=program.method,
                keys_of_metrics=keys_of_metrics(program.model),
            )
            with program.binding.scope(), step.current():
                logs = program.step_function(keras.tree.pack_sequence_as(structure, flat))
            if not program.is_stock:
                probe.numbers += in_logs(logs).items()
            roots = [leaf for leaf, is_root in zip(leaves, has_rows, strict=True) if is_root]
            return self._outputs(probe, roots, program.binding.custom_loss)

        specs = [
            tf.TensorSpec([num_rows, *leaf.shape[1:]] if is_root else leaf.shape, leaf.dtype)
            for leaf, is_root in zip(leaves, has_rows, strict=True)
        ]
        with function_caches.inlined():
            traced = tf.compat.v1.wrap_function(trace, [tf.TensorSpec([], tf.int64)] * 2 + specs)
        self._function: Callable = traced.prune(traced.inputs[: 2 + len(specs)], traced.outputs)
        operations = self._function.graph.get_operations()
        is_random = any(word in operation.type for operation in operations for word in RANDOM)
        # Of a loss that is made of gradients the ranks' parts are made of those of the whole batch.
        is_second_order = any(OF_BATCH in operation.name for operation in operations)
        normal = [each for each in layers(program.model) if isinstance(each, keras.layers.BatchNormalization)]
        is_normalized = not all(is_synchronized(each, program.binding.options) for each in normal)
        is_exact = not (is_random or is_normalized or is_second_order or self.alone.asked)
        types = {output.dtype.base_dtype for operation in operations for output in operation.outputs}
        self.tolerance = NEAR if not is_exact else HALF_CLOSE if types & HALF else CLOSE

    def _outputs(self, probe: Probe, roots: list[tf.Tensor], kind_of_losses: Reduction) -> list[tf.Tensor]:
        """The scalars whose values tell something. Gradients of variables are the same on all ranks."""
        dims = RowDims(roots, gathers_rows=True)
        graph = tf.compat.v1.get_default_graph()
        for operation in graph.get_operations():
            if OF_BATCH in operation.name:
                dims.note(operation.outputs[0], ALIKE)
        outputs = [loss for loss in probe.losses if loss.shape.rank == 0 and loss.dtype.is_floating]
        self.keys += [None] * len(outputs)
        losses, changes = set(map(id, probe.losses)), Changes()
        for key, number in probe.numbers:
            if not is_number(number):
                continue
            is_constant = not is_symbolic(number) or dims.of(number) is ALIKE
            told = "mean" if is_constant else kind_of_losses if id(number) in losses else reduced_by(dims, number)
            if told is not None:
                self.told.append(Seen(0.0, 0.0, 0.0, told, key))
            if not is_constant and number.graph is graph and not changes.are_before(number):
                self.keys.append(key)
                outputs.append(tf.cast(number, tf.float64))
        return outputs

    def values(self, leaves: list[tf.Tensor], local: int, total: int) -> list[float]:
        """The scalars of `local` rows, where all ranks have `total`."""
        results = self._function(tf.constant(local, tf.int64), tf.constant(total, tf.int64), *leaves)
        return [float(result) for result in tf.nest.flatten(results)]


class Changes:
    """Knows which operations of a graph change something, or run Python, before they give what they do."""

    def __init__(self):
        self._harmless: set[tf.Operation] = set()

    def are_before(self, tensor: tf.Tensor) -> bool:
        """True if to compute the tensor changes something."""
        rest, seen = [tensor.op], set(self._harmless)
        while rest:
            operation = rest.pop()
            if operation in seen:
                continue
            seen.add(operation)
            is_read = operation.type in READS or any(word in operation.type for word in RANDOM)
            if operation.op_def is not None and operation.op_def.is_stateful and not is_read:
                return True
            rest += [each.op for each in operation.inputs] + list(operation.control_inputs)
        self._harmless = seen
        return False


def every_other(leaves: list[tf.Tensor], given: int, start: int, stop: int) -> list[tf.Tensor]:
    """Rows `start`, `start + 2` and so on of tensors of `given` rows, up to row `stop`; others are left whole."""
    rows = tf.range(start, stop, 2)
    return [tf.gather(leaf, rows) if leaf.shape.rank and leaf.shape[0] == given else leaf for leaf in leaves]


def judged(of_all: float, first: float, second: float, tolerance: float) -> Literal["mean", "sum", "neither"] | None:
    """What a scalar is: "mean", "sum", "neither", or None if it may be both."""
    scale = max(abs(of_all), abs(first), abs(second))
    found: dict[Reduction, float] = {"mean": (first + second) / 2, "sum": first + second}
    fits = [kind for kind, value in found.items() if abs(of_all - value) <= tolerance * scale]
    # A hinge is often 0 on a half, so that with random numbers its mean may come near to a sum.
    is_unclear = tolerance == NEAR and min(abs(first), abs(second)) < 0.1 * scale
    if not np.isfinite(scale) or scale == 0 or len(fits) > 1 or is_unclear:
        return None
    return fits[0] if fits else "neither"
