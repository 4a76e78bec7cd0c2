"""What a training or test step of the user's own gets that Keras's own does not need: rows for its logs, notes."""

import contextlib

import keras
import numpy as np
import tensorflow as tf

from keras_par.job.failures import AgreedError
from keras_par.keras_patches.coordination import fit_call as runs
from keras_par.keras_patches.models.binding import Binding
from keras_par.keras_patches.step.known_losses import require_known
from keras_par.keras_patches.step.number_kinds import in_logs, key_in_logs, kind_of
from keras_par.keras_patches.table.replacements import TRAINER
from keras_par.keras_patches.table.uses import find
from keras_par.sharding.step import Step

ROWS = "keras_par_rows"  # the key under which a step's logs have its rows, on their way out of the graph


def with_rows(step: Step, logs):
    """The logs of a step, with what a mean and a sum in them count on this rank.

    Raises:
        LossUnknown: nobody has looked yet, and it is not known what a number is.
    """
    if not isinstance(logs, dict):
        return logs
    require_known(step, in_logs(logs).values())
    return {**logs, ROWS: tf.stack([step.share(tf.float64), tf.cast(step.local > 0, tf.float64)])}


def without_rows(run: runs.Run | None, binding: Binding, method: str, logs):
    """The logs as the step returned them; the `run` under way notes what this rank's numbers in them count."""
    if not isinstance(logs, dict) or ROWS not in logs:
        return logs
    logs = dict(logs)
    rows = logs.pop(ROWS)

    def weight_of(place: tuple[str, ...]) -> float:
        mean, total = np.array(rows).tolist()
        return mean if kind_of(binding, method, key_in_logs(place), binding.custom_loss) == "mean" else total

    if run is not None:
        run.weight_of = weight_of
    return logs


@contextlib.contextmanager
def shapes_explained(model: keras.Model, method: str, num_shards: int):
    """Adds a note to an error about shapes, but for those of features: they may be those of a whole batch."""
    try:
        yield
    except (ValueError, tf.errors.InvalidArgumentError) as error:
        text = str(error).lower()
        is_about_rows = any(word in text for word in ("shape", "dimension", "batch size"))
        if is_about_rows and "expected axis -1" not in text and not isinstance(error, AgreedError):
            error.add_note(
                f"keras-par: {method} of '{model.name}' sees this rank's rows of a batch, which {num_shards} ranks "
                "divide: where it, or a layer, needs a constant batch size, use kp.local_batch_size(batch_size); where "
                "rows belong together, as the nodes of a graph, make each graph one row of a batch of graphs, or give "
                "every rank whole graphs, by kp.DataParallel(auto_shard_dataset=False)."
            )
        raise


MAKERS = ("make_train_function", "make_test_function", "make_predict_function")


def require_stock_makers(model: keras.Model) -> None:
    """Refuses methods that make a step's function in a way of their own, which would get parts of batches.

    Raises:
        ValueError: the model's class overrides one.
    """
    for name in MAKERS:
        if getattr(type(model), name) is not getattr(find(TRAINER), name):
            step = name.removeprefix("make_").replace("function", "step")
            raise ValueError(
                f"keras-par: {type(model).__name__} overrides {name}, which makes the step that knows "
                f"its rows: override {step} instead."
            )
