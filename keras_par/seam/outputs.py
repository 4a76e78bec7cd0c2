"""Notes how the outputs of a model's layers are divided while a step is traced."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import keras
from keras.src.distribution import distribution_lib

from keras_par.seam import step as steps
from keras_par.seam.layouts import path_of, said_by
from keras_par.sharding.tensor import ShardedTensor


@dataclass(frozen=True)
class OutputRow:
    """The output of a layer's call; `axes` is all None where every rank has it whole, but for rows of other ranks."""

    layer: str
    kind: str
    shape: tuple[int | None, ...]
    axes: tuple[str | None, ...]
    is_said: bool  # the layout map has a pattern for it
    local_shape: tuple[int | None, ...]


@contextlib.contextmanager
def outputs_noted() -> Iterator[list[OutputRow]]:
    """A list that grows by a row for each output of each layer called on real tensors within the block."""
    rows: list[OutputRow] = []
    original = keras.layers.Layer.__call__

    def call(self, *args, **kwargs):
        outputs = original(self, *args, **kwargs)
        rows.extend(row_of(self, output) for output in keras.tree.flatten(outputs) if is_of_step(output))
        return outputs

    keras.layers.Layer.__call__ = call
    try:
        yield rows
    finally:
        keras.layers.Layer.__call__ = original


def is_of_step(output: Any) -> bool:
    """False while the model is built from symbols."""
    return steps.current() is not None and hasattr(output, "shape")


def row_of(layer: keras.layers.Layer, output: Any) -> OutputRow:
    shape = tuple(output.shape)
    sharded = isinstance(output, ShardedTensor)
    return OutputRow(
        layer=path_of(layer),
        kind=type(layer).__name__,
        shape=shape,
        axes=output.axes if sharded else (None,) * len(shape),
        is_said=said_by(distribution_lib.distribution(), f"{path_of(layer)}/output") is not None,
        local_shape=tuple(output.local.shape) if sharded else shape,
    )
