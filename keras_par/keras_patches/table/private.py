"""Checks before anything is replaced that Keras has the private names that the table lists, and some attributes."""

from collections.abc import Iterator

import keras
import numpy as np
import tensorflow as tf

from keras_par.base.backend import sentence
from keras_par.base.version import SUPPORTED, wanted
from keras_par.keras_patches.table.replacements import PATCHES
from keras_par.keras_patches.table.uses import ADAPTERS, USES, find, has

NEWEST_TESTED = "3.15"


def optimizer() -> keras.Optimizer:
    """One whose counter of steps is in a graph: an eager one would start TensorFlow before a GPU is chosen."""
    with tf.Graph().as_default():
        return keras.optimizers.SGD()


# (what makes an instance, the attributes its __init__ must set, why they are needed)
PRIVATE_ATTRIBUTES = (
    (
        lambda: keras.Sequential(name="probe"),
        ("_loss_tracker", "_compile_loss", "_compile_metrics", "_jit_compile", "_initial_epoch"),
        "to track the newest loss, to build losses and metrics, to keep collectives out of XLA, and to resume together",
    ),
    (
        lambda: keras.layers.Layer(name="probe"),
        ("_flatten_layers", "_non_trainable_variables"),
        "to average state that has no gradients",
    ),
    (
        optimizer,
        ("_iterations", "_trainable_variables", "_trainable_variables_indices"),
        "to accumulate gradients, and to find variables again that are divided",
    ),
    (lambda: keras.layers.Layer(name="probe"), ("_remat_mode",), "to recompute the layers that a strategy names"),
    (
        lambda: keras.callbacks.ModelCheckpoint("probe.keras"),
        ("_batches_seen_since_last_saving", "_last_batch_seen"),
        "to go on with what it has counted",
    ),
    (
        lambda: tf.function(lambda: None),
        ("_variable_creation_config", "_no_variable_creation_config", "_created_variables"),
        "to let functions begin anew whose first trace was given up",
    ),
    (lambda: keras.callbacks.SwapEMAWeights(), ("_ema_weights_in_model",), "the same"),
    (lambda: keras.callbacks.TensorBoard("probe"), ("_global_train_batch", "_global_test_batch"), "the same"),
    (
        lambda: find(f"{ADAPTERS}.array_data_adapter:ArrayDataAdapter")(np.zeros([1, 1])),
        ("_inputs", "_num_samples", "_shuffle"),
        "to cut arrays before copying rows",
    ),
    (
        lambda: find("keras.src.trainers.epoch_iterator:EpochIterator")(np.zeros([1, 1])),
        (
            "_enumerate_iterator",
            "_epoch_iterator",
            "_current_iterator",
            "_get_iterator",
            "_interrupted_warning",
            "_num_batches",
            "_steps_seen",
        ),
        "to end data of unknown length on all ranks together, and to begin in the middle of an epoch",
    ),
)


def check() -> None:
    """Refuses a Keras whose version or private names are not the ones this room knows.

    Raises:
        RuntimeError: Keras runs on another backend than TensorFlow, its version is outside the supported range,
            or a name it should have is missing.
    """
    if keras.backend.backend() != "tensorflow":
        raise RuntimeError(sentence(keras.backend.backend()))
    oldest, below = SUPPORTED["keras"]
    supported = f"Keras >= {oldest} and < {below} (tested up to {NEWEST_TESTED})"
    if not has(oldest, below):
        raise RuntimeError(
            f"keras-par: Keras {keras.__version__} is installed, but keras-par supports {supported}: "
            f"run 'pip install \"{wanted('keras')}\"'."
        )
    missing = next(missing_names(), None)
    if missing:
        raise RuntimeError(
            f"keras-par: Keras {keras.__version__} has no {missing}, which keras-par relies on; "
            f"it supports {supported}: install a Keras of that range."
        )


def missing_names() -> Iterator[str]:
    """The private names that this Keras lacks."""
    targets = [each.target for each in PATCHES if not each.instead and has(each.since, each.until)]
    for target in (*targets, *(each.target for each in USES)):
        try:
            find(target)
        except (ImportError, AttributeError):
            yield target.replace(":", ".")
    for make, names, _ in PRIVATE_ATTRIBUTES:
        instance = make()
        yield from (f"{type(instance).__name__}.{name}" for name in names if not hasattr(instance, name))
