"""Computes on every rank, of the rows of all, a loss that looks across the rows of a batch, as one process would."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import tree
from keras.losses import Loss
from keras.src.backend.common import masking

from keras_par.comm.communicator import SoloCommunicator
from keras_par.comm.differentiable import first_row
from keras_par.keras_patches.inputs.components import num_rows
from keras_par.keras_patches.inputs.shards import gather_rows
from keras_par.keras_patches.step.halves import combinations, of_halves, orders, rows_of
from keras_par.keras_patches.step.known_losses import Kind, own_kind
from keras_par.sharding import step as steps
from keras_par.sharding.collective_names import numbered

ROUNDING = 100  # how many units of rounding values of the same rows may differ by


def call(original):
    """`Loss.__call__`, which takes the rows of all ranks for a loss that looks across the rows of a batch.

    Its gradient is that of this rank's rows, so that nothing is sent backward. Costs one all-gather forward for each
    tensor of targets, outputs, weights and masks, and one of a number.
    """

    def replacement(self, y_true, y_pred, sample_weight=None):
        step = steps.current()
        if step is None or isinstance(step, Whole):
            return original(self, y_true, y_pred, sample_weight)
        if step.probed is not None and step.probed.kinds_of_losses is not None:
            step.probed.kinds_of_losses[id(self)] = tried(self, y_true, y_pred)
        loss = of_rows(self, step, y_true, y_pred, sample_weight)
        if (step.first_trace is not None or step.is_blind) and (
            own_kind(self) or id(self) in step.binding.kinds_of_losses
        ):
            step.handled.append(loss)
        return loss

    def of_rows(self, step, y_true, y_pred, sample_weight):
        num_dims = tf.TensorShape(getattr(y_pred, "shape", None)).rank
        kind = kind_of(self, step.binding.kinds_of_losses, num_dims or 0)
        if kind == "rows":
            return original(self, y_true, y_pred, sample_weight)
        is_weighted = sample_weight is not None or masking.get_keras_mask(y_pred) is not None
        if kind in ("mean", "sum") and not is_weighted:
            with Whole(step, step.local).current():
                loss = original(self, y_true, y_pred)
            return of_step(step, loss, kind)
        rows = Gathered(step, y_pred, f"loss '{self.name}', which looks across the rows of a batch,")
        given = tree.map_structure(rows.of, (y_true, y_pred, sample_weight))
        mask = masking.get_keras_mask(y_pred)
        if mask is not None:
            masking.set_keras_mask(given[1], rows.of(mask))
        with Whole(step, step.total).current():
            loss = original(self, *given)
        return of_step(step, loss, "mean")

    return replacement


def of_step(step: steps.Step, loss: tf.Tensor, kind: Kind) -> tf.Tensor:
    """A loss that is the batch's, or that of this rank's rows, as the scalars of this step are: means, or sums."""
    if kind == "mean":
        return step.times(loss, step.share(loss.dtype)) if step.adds_up else loss
    return loss if step.adds_up else step.times(loss, step.inverse_share(loss.dtype))


class Whole(steps.Step):
    """A step within a step whose rows are all that there are, so that losses in it are one process's."""

    def __init__(self, step: steps.Step, num_rows):
        super().__init__(step.binding, num_rows, num_rows, thin=False, communicator=SoloCommunicator())
        self.is_stock = True


class Gathered:
    """The rows of all ranks, one rank's after the other's.

    Args:
        step: whose rows these are.
        like: a nest whose first leaf has the rows of this rank.
        what: needs them, for an error.

    Raises:
        ValueError: XLA compiles the step.
    """

    def __init__(self, step: steps.Step, like: Any, what: str):
        step.require_plain(what)
        self._step, self._group = step, step.communicator
        first = tree.flatten(like)[0]
        self._here = step.local if step.thin else num_rows(first)
        if isinstance(step.local, int):
            self._start: Any = step.local * self._group.rank
        else:
            self._start = first_row(first[: self._here], self._group, named)

    def of(self, leaf: Any) -> Any:
        """The rows of one tensor; what is None, or has no dims, is the same on all ranks."""
        if leaf is None:
            return None
        if isinstance(leaf, (tf.SparseTensor, tf.RaggedTensor)):
            return gather_rows(self._group, leaf, named("gather"), self._here)
        tensor = tf.convert_to_tensor(leaf)
        if not tensor.shape.rank:
            return tensor
        if tensor.dtype == tf.bool:
            return tf.cast(self.of(tf.cast(tensor, tf.uint8)), tf.bool)
        return self._differentiable(tensor) if tensor.dtype.is_floating else self._forward(tensor)

    def _forward(self, tensor: tf.Tensor) -> tf.Tensor:
        whole = gather_rows(self._group, tensor, named("gather"), self._here)
        return tf.ensure_shape(whole, [None, *tensor.shape[1:]])

    def _differentiable(self, tensor: tf.Tensor) -> tf.Tensor:
        step = self._step

        @tf.custom_gradient
        def gathered(x):
            def backward(upstream):
                own = upstream[self._start : self._start + self._here]
                own = step.times(own, step.inverse_share(x.dtype))
                rest = tf.zeros_like(x)[self._here :]  # the row of a rank without rows
                return tf.ensure_shape(tf.concat([own, rest], 0), x.shape)

            return self._forward(x), backward

        return gathered(tensor)


def named(kind: str) -> str:
    return numbered(f"loss.{kind}")


def kind_of(loss: Loss, found: dict[int, Kind], num_dims: int) -> Kind:
    """What a loss gives: what is known of Keras's own, else what a probe has found; its outputs have `num_dims`."""
    return own_kind(loss, num_dims) or found.get(id(loss), "rows")


def tried(loss: Loss, y_true: Any, y_pred: Any) -> Kind:
    """What a loss gives, found by giving it rows of a batch at once and in halves, in two orders.

    A loss that fails or gives no number for a half is taken for one that needs the whole batch.
    """
    given = (y_true, y_pred)
    num_rows = next((leaf.shape[0] for leaf in tree.flatten(given) if leaf.shape.rank), 0)

    def value(rows: np.ndarray) -> np.ndarray:
        cut = tree.map_structure(
            lambda leaf: keras.ops.convert_to_tensor(leaf, loss.dtype), rows_of(given, num_rows, rows)
        )
        return keras.ops.convert_to_numpy(loss.call(*cut))

    try:
        values = [of_halves(value, rows) for rows in orders(num_rows)]
    except Exception:  # code of the user's own, which may need another number of rows
        return "batch"
    whole = values[0][0]
    among: list[Kind] = ["mean", "sum"] if whole.ndim == 0 else ["rows"]
    if not (np.any(whole) and np.all(np.isfinite(whole))):
        return "batch"
    close = ROUNDING * np.finfo(whole.dtype).eps
    fitting = [kind for kind in among if all(kind in combinations(*each, close, among) for each in values)]
    return fitting[0] if len(fitting) == 1 else "batch"
