"""Installs all of this room's replacements in Keras, once, after checking that they fit its version; takes them out."""

import functools

from keras.src.distribution import distribution_lib

from keras_par.comm import call_site
from keras_par.keras_patches.table import patch, private
from keras_par.keras_patches.table.replacements import PATCHES


@functools.cache
def install() -> None:
    """Makes models that are compiled under a strategy train on all ranks; other models are not affected.

    Raises:
        RuntimeError: this Keras is not supported.
    """
    private.check()
    from keras_par.keras_patches.step.layer_origins import of_layer_under_way

    strategy = distribution_lib.distribution()
    for each in PATCHES:
        patch.apply(each)
    distribution_lib.set_distribution(strategy)
    call_site.find_by(of_layer_under_way)


def uninstall() -> None:
    """Puts back all that was replaced; models that are bound must not be used afterwards."""
    from keras_par.keras_patches.variables import operations

    strategy = distribution_lib.distribution()
    patch.restore()
    distribution_lib.set_distribution(strategy)
    operations.install.cache_clear()
    install.cache_clear()
