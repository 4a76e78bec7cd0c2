"""Gives each rank a file of its own where tf.data caches in a file, which several processes cannot write at once."""

import os

import tensorflow as tf

from keras_par.comm import world
from keras_par.keras_patches.inputs.own_shares import is_marked


def cache(original):
    """Caches in `<filename>-rank-<rank>-of-<size>`; reads a complete cache that one process left at `filename`.

    A cache of this rank's share, by `kp.data.shard`, is never taken from `filename`, which would hold all rows. Costs
    no collective.
    """

    def replacement(self, filename="", name=None):
        communicator = world.current() if world.is_started() else None
        is_path = isinstance(filename, (str, os.PathLike)) and os.fspath(filename) != ""
        if communicator is not None and communicator.size > 1 and is_path:
            filename = os.fspath(filename)
            if is_marked(self) or not is_complete(filename):
                filename = f"{filename}-rank-{communicator.rank}-of-{communicator.size}"
        return original(self, filename, name)

    return replacement


def is_complete(filename: str) -> bool:
    """True if a cache was written there to its end, which is when TensorFlow writes its index."""
    return tf.io.gfile.exists(f"{filename}.index")
