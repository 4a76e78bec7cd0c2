"""Installs all of this room's replacements in Keras, once, after checking that they fit its version; takes them out."""

import functools

from keras_par.seam import patch, private


@functools.cache
def install() -> None:
    """Makes models that are compiled under a strategy train on all ranks; other models are not affected.

    Raises:
        RuntimeError: this Keras is not supported.
    """
    private.check()
    from keras_par.seam import (
        active_strategy,
        binding,
        caches,
        devices,
        downloads,
        epoch,
        gradients,
        layouts,
        lookups,
        loss,
        metrics,
        model_files,
        normalization,
        optimizer,
        origins,
        random_rows,
        row_shapes,
        sharded_optimizer,
        sharded_variable,
        stock_callbacks,
        summary,
        trainer,
        whole_files,
    )

    sharding = (layouts, sharded_variable, sharded_optimizer)  # whose wrappers are inside the others
    steps = (gradients, lookups, loss, metrics, normalization, optimizer, row_shapes, random_rows, epoch, trainer)
    files = (whole_files, model_files, stock_callbacks, summary)
    inputs = (caches, downloads)
    for part in (active_strategy, origins, *sharding, binding, devices, *inputs, *steps, *files):
        part.install()


def uninstall() -> None:
    """Puts back all that was replaced; models that are bound must not be used afterwards."""
    from keras_par.seam import operations

    patch.restore()
    operations.install.cache_clear()
    install.cache_clear()
