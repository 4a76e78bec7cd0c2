"""Makes the function that Keras calls for each batch to predict: this rank's rows in, the whole batch's outputs out."""

import contextlib
from typing import Any

import tensorflow as tf
from keras import tree

from keras_par.comm.communicator import Communicator
from keras_par.keras_patches.inputs.shards import KINDS, ThinShard, as_tensor, cut, gather_rows, joined
from keras_par.keras_patches.models import binding as bindings
from keras_par.keras_patches.rows.batch_rows import predicted_rows
from keras_par.keras_patches.trainer.fit_heartbeat import with_heartbeat
from keras_par.keras_patches.trainer.step_function import without_xla
from keras_par.keras_patches.trainer.step_program import rows_of
from keras_par.sharding.step import Step
from keras_par.sharding.variable_views import sharded


def make_predict_function(original):
    """Builds a predict function that works on this rank's rows and returns the whole batch's, in order."""

    def replacement(self, force=False):
        fresh = self.predict_function is None or force
        binding = bindings.of(self)
        with without_xla(self) if binding is not None and sharded(self.variables) else contextlib.nullcontext():
            result = original(self, force)
        if binding is not None and fresh:
            whole = whole_predictions(binding, self.predict_function)
            self.predict_function = with_heartbeat(self, whole, is_common=True, is_marked=False)
        return result

    return replacement


def whole_predictions(binding: bindings.Binding, function):
    """`function`, which predicts a list of batches, for lists of Shards, Parts or whole batches."""
    state = tf.Variable([0, 0, 0], dtype=tf.int64, trainable=False)

    def predict(data):
        communicator = binding.data
        outputs = []
        for batch in data:
            if not isinstance(batch, KINDS):
                batch = cut(tree.map_structure(as_tensor, batch), communicator.size, communicator.rank)
            local, total = rows_of(communicator, batch)
            rows = predicted_rows(communicator, batch, total, state, binding.mesh is None)
            with binding.scope(), Step(binding, local, total, thin=False, rows=rows).current():
                parts = tree.map_structure(as_tensor, function([batch.batch]))
            count = batch.local if isinstance(batch, ThinShard) else None
            flat = [gathered(communicator, leaf, i, count) for i, leaf in enumerate(tree.flatten(parts))]
            outputs.append(tree.pack_sequence_as(parts, flat))
        return tree.map_structure(lambda *batches: joined(list(batches)), *outputs)

    return predict


def gathered(communicator: Communicator, output: Any, number: int, count: tf.Tensor | None) -> Any:
    """All ranks' rows of the output of this number. Costs what `gather_rows` does.

    Raises:
        ValueError: the output has no row for each row of the input.
    """
    if output.shape.rank == 0:
        raise ValueError(
            f"keras-par: predict gathers rows from the ranks, but output {number} of the model is a scalar: call the "
            "model itself."
        )
    return gather_rows(communicator, output, f"kp.predict.{number}", count)
