"""Notes how the outputs of a model's layers are divided while a step is traced."""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import keras
from keras.src.distribution import distribution_lib

from keras_par.keras_patches.variables.layouts import path_of, said_by
from keras_par.sharding import step as steps
from keras_par.sharding.tensor import ShardedTensor


@dataclass(frozen=True)
class OutputRow:
    """The output of a layer's call; `axes` is all None where every rank has it whole."""

    layer: str
    kind: str
    shape: tuple[int | None, ...]
    axes: tuple[str | None, ...]
    is_said: bool  # the layout map has a pattern for it
    local_shape: tuple[int | None, ...]
    has_rows: bool = False  # its first dim is the batch's, which the batch axis divides

    @property
    def is_inferred(self) -> bool:
        """True if it is divided in another way than by rows, and the layout map does not say so."""
        return any(self.axes[self.has_rows :]) and not self.is_said


_rows: ContextVar[list[OutputRow] | None] = ContextVar("rows", default=None)


@contextlib.contextmanager
def outputs_noted() -> Iterator[list[OutputRow]]:
    """A list that grows by a row for each output of each layer called on real tensors within the block."""
    rows: list[OutputRow] = []
    token = _rows.set(rows)
    try:
        yield rows
    finally:
        _rows.reset(token)


def noted(original):
    """Layer.__call__, which adds the outputs' rows to the list of the block around it."""

    def replacement(self, *args, **kwargs):
        outputs = original(self, *args, **kwargs)
        rows = _rows.get()
        if rows is not None:
            rows.extend(row_of(self, output) for output in keras.tree.flatten(outputs) if is_of_step(output))
        return outputs

    return replacement


def is_of_step(output: Any) -> bool:
    """False while the model is built from symbols."""
    return steps.current() is not None and hasattr(output, "shape")


def row_of(layer: keras.layers.Layer, output: Any) -> OutputRow:
    shape, sharded = tuple(output.shape), isinstance(output, ShardedTensor)
    axes = output.axes if sharded else (None,) * len(shape)
    local_shape = tuple(output.local.shape) if sharded else shape
    step = steps.current()
    assert step is not None
    # A dim of as many elements as the batch has rows here is taken for that of the rows.
    has_rows = bool(shape) and step.binding.num_shards > 1 and axes[0] is None and is_number_of_rows(shape[0], step)
    if has_rows:
        shape = (step.total if isinstance(step.total, int) and shape[0] is not None else None, *shape[1:])
        axes = (step.binding.strategy.batch_dim_name, *axes[1:])
    return OutputRow(
        layer=path_of(layer),
        kind=type(layer).__name__,
        shape=shape,
        axes=axes,
        is_said=said_by(distribution_lib.distribution(), f"{path_of(layer)}/output") is not None,
        local_shape=local_shape,
        has_rows=has_rows,
    )


def is_number_of_rows(size: int | None, step: steps.Step) -> bool:
    return size is None or (isinstance(step.local, int) and size == step.local)
