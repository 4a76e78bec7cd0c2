"""Computes the scalars of a step on rank 0 for both halves of a batch and for all of it, and judges what they are.

What a step changes is pruned from the graph that does this, so that neither variables nor seeds move; only a loss that
itself waits for a change makes it.
"""

from collections import defaultdict
from typing import Any, Literal, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from keras_par.comm.communicator import SoloCommunicator
from keras_par.comm.counted import CountedCommunicator
from keras_par.keras_patches.rows.row_dims import ALIKE, RowDims, is_symbolic
from keras_par.keras_patches.step import halves
from keras_par.keras_patches.step.batch_normalization import is_synchronized
from keras_par.keras_patches.step.metrics import layers
from keras_par.keras_patches.step.number_kinds import Key, in_logs, is_number, keys_of_metrics, reduced_by
from keras_par.keras_patches.trainer.abandoned_trace import inlined
from keras_par.keras_patches.trainer.step_program import Program
from keras_par.keras_patches.update.gradients import OF_BATCH
from keras_par.plan.options import Reduction
from keras_par.sharding.step import Probed, Step

NEAR = 0.15  # the relative distance that random numbers explain
HALF = {tf.float16, tf.bfloat16}
RANDOM = ("Random", "Multinomial", "Bernoulli", "Gamma", "Poisson")
READS = ("Placeholder", "VarHandleOp", "ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VarIsInitializedOp")

Found = Literal["mean", "sum", "neither"]


class Loss(NamedTuple):
    """A loss of which a step takes gradients: what it is, None if that is not clear, and its values."""

    kind: Found | None
    of_all: float
    first: float
    second: float


def scalars_of(program: Program, batch: Any) -> tuple[list[Loss], dict[Key, Found]] | None:
    """What a step's losses are, and numbers that it keeps or returns, found by halving rank 0's rows of a batch.

    Of a number whose values do not tell it, what the graph tells. None if there is nothing to be told.
    """
    leaves = [leaf for leaf in keras.tree.flatten(batch) if leaf is not None]
    if batch is None or not all(isinstance(leaf, (tf.Tensor, np.ndarray)) for leaf in leaves):
        return None
    given = halves.num_rows_of(batch)
    half = given // 2
    try:
        of_all = of_half = ScalarGraph(program, batch, given, None)
    except Exception:  # a step that needs the number of rows while it is traced
        if not half:
            return None
        of_all, of_half = (ScalarGraph(program, batch, given, count) for count in (2 * half, half))
    if of_all.asks_ranks:  # what takes other ranks' rows is made for ranks
        return None

    def values(rows: np.ndarray) -> list[float]:
        graph = of_all if len(rows) > half else of_half
        return graph.values(halves.rows_of(leaves, given, rows), len(rows), 2 * half)

    # Near to a sum may be chance, which halves in another order hardly repeat.
    is_random = of_all.tolerance == NEAR
    found = [halves.of_halves(values, rows) for rows in halves.orders(given)[: 1 + is_random]] if half else []
    losses: list[Loss] = []
    numbers: defaultdict[Key, set] = defaultdict(set)
    for place, key in enumerate(of_all.keys if found else ()):
        values_of = [[part[place] for part in each] for each in found]
        kinds = {judged(of_all.tolerance, *each) for each in values_of}
        kind = kinds.pop() if len(kinds) == 1 and not (is_random and "neither" in kinds) else None
        if key is None:
            losses.append(Loss(kind, *values_of[0]))
        elif kind is not None:
            numbers[key].add(kind)
    by_values = set(numbers)
    for key, kind in of_all.told:
        if key not in by_values:
            numbers[key].add(kind)
    return losses, {key: kinds.pop() if len(kinds) == 1 else "neither" for key, kinds in numbers.items()}


class ScalarGraph:
    """A graph of a step's scalars.

    Args:
        program: of the step.
        batch: whose structure it takes.
        given: its number of rows.
        num_rows: of what it is called with, None for any.
    """

    def __init__(self, program: Program, batch: Any, given: int, num_rows: int | None):
        self.keys: list[Key | None] = []  # of the scalars; None for losses
        self.told: list[tuple[Key, Reduction]] = []  # what the graph tells of numbers, while their values may not
        alone = CountedCommunicator(SoloCommunicator())
        leaves = [tf.convert_to_tensor(leaf) for leaf in keras.tree.flatten(batch) if leaf is not None]
        method = program.method
        has_rows = [bool(leaf.shape.rank) and leaf.shape[0] == given for leaf in leaves]

        def trace(local, total, *leaves):
            rest, probed = iter(leaves), Probed()
            step = Step(
                program.binding, local, total, thin=False, captured=[], probed=probed, communicator=alone, method=method
            )
            step.keys_of_metrics = keys_of_metrics(program.model)
            with program.within(step):
                data = keras.tree.map_structure(lambda leaf: None if leaf is None else next(rest), batch)
                logs = program.step_function(data)
            if not program.is_stock:
                probed.numbers += in_logs(logs).items()
            roots = [leaf for leaf, is_root in zip(leaves, has_rows, strict=True) if is_root]
            return self._outputs(probed, roots, program.binding.custom_loss)

        specs = [
            tf.TensorSpec([num_rows, *leaf.shape[1:]] if is_root else leaf.shape, leaf.dtype)
            for leaf, is_root in zip(leaves, has_rows, strict=True)
        ]
        with inlined():
            traced = tf.compat.v1.wrap_function(trace, [tf.TensorSpec([], tf.int64)] * 2 + specs)
        self._function = traced.prune(traced.inputs[: 2 + len(specs)], traced.outputs)
        self.asks_ranks = any(call.name.startswith("kp.ops.") for call in alone.calls)
        operations = self._function.graph.get_operations()
        is_random = any(word in operation.type for operation in operations for word in RANDOM)
        # Of a loss that is made of gradients the ranks' parts are made of those of the whole batch.
        is_second_order = any(OF_BATCH in operation.name for operation in operations)
        normal = [each for each in layers(program.model) if isinstance(each, keras.layers.BatchNormalization)]
        is_normalized = not all(is_synchronized(each, program.binding.options) for each in normal)
        types = {output.dtype.base_dtype for operation in operations for output in operation.outputs}
        is_near = is_random or is_normalized or is_second_order or alone.calls
        self.tolerance = NEAR if is_near else halves.HALF_CLOSE if types & HALF else halves.CLOSE

    def _outputs(self, probed: Probed, roots: list[tf.Tensor], kind_of_losses: Reduction) -> list[tf.Tensor]:
        """The scalars whose values tell something. Gradients of variables are the same on all ranks."""
        dims = RowDims(roots, gathers_rows=True)
        graph = tf.compat.v1.get_default_graph()
        for operation in graph.get_operations():
            if OF_BATCH in operation.name:
                dims.note(operation.outputs[0], ALIKE)
        outputs = [loss for loss in probed.losses if loss.shape.rank == 0 and loss.dtype.is_floating]
        self.keys += [None] * len(outputs)
        losses, harmless = set(map(id, probed.losses)), set[tf.Operation]()
        for key, number in probed.numbers:
            if not is_number(number):
                continue
            is_constant = not is_symbolic(number) or dims.of(number) is ALIKE
            told = "mean" if is_constant else kind_of_losses if id(number) in losses else reduced_by(dims, number)
            if told is not None:
                self.told.append((key, told))
            if not is_constant and number.graph is graph and not changes_something(number, harmless):
                self.keys.append(key)
                outputs.append(tf.cast(number, tf.float64))
        return outputs

    def values(self, leaves: list[tf.Tensor], local: int, total: int) -> list[float]:
        """The scalars of `local` rows, where all ranks have `total`."""
        results = self._function(tf.constant(local, tf.int64), tf.constant(total, tf.int64), *leaves)
        return [float(result) for result in tf.nest.flatten(results)]


def changes_something(tensor: tf.Tensor, harmless: set[tf.Operation]) -> bool:
    """True if to compute a tensor changes something, or runs Python; `harmless` operations grow where it does not."""
    rest, seen = [tensor.op], set(harmless)
    while rest:
        operation = rest.pop()
        if operation in seen:
            continue
        seen.add(operation)
        is_read = operation.type in READS or any(word in operation.type for word in RANDOM)
        if operation.op_def is not None and operation.op_def.is_stateful and not is_read:
            return True
        rest += [each.op for each in operation.inputs] + list(operation.control_inputs)
    harmless |= seen
    return False


def judged(tolerance: float, of_all: float, first: float, second: float) -> Found | None:
    """What a scalar is; None if it may be both."""
    scale = max(abs(of_all), abs(first), abs(second))
    among: tuple[Found, ...] = ("mean", "sum")
    fits = halves.combinations(of_all, first, second, tolerance, among)
    # A hinge is often 0 on a half, so that with random numbers its mean may come near to a sum.
    is_unclear = tolerance == NEAR and min(abs(first), abs(second)) < 0.1 * scale
    if not np.isfinite(scale) or scale == 0 or len(fits) > 1 or is_unclear:
        return None
    return fits[0] if fits else "neither"
