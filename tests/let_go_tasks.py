"""Iterators of pipelines that tf.data tunes: how long it takes to let go of them, and who does so.

As a program it measures this on one core, where without `let_go_aside` two of three iterators are waited for.
"""

import json
import os
import time

if __name__ == "__main__":
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # before TensorFlow starts its threads

import keras
import numpy as np
import tensorflow as tf

AGE = 0.7  # seconds, after which tf.data's thread sleeps for 0.57 more
COUNT = 5


def tuned(is_tuned: bool = True) -> tf.data.Dataset:
    """50 batches of 8 rows, whose map and prefetching tf.data tunes unless it is told not to."""
    options = tf.data.Options()
    if not is_tuned:
        options.autotune.enabled = False
    ones = tf.ones([300, 300])
    dataset = tf.data.Dataset.from_tensor_slices((np.ones([400, 300], "float32"), np.ones(400, "float32")))
    dataset = dataset.batch(8).map(lambda x, y: (x @ ones, y), num_parallel_calls=tf.data.AUTOTUNE)
    return dataset.prefetch(tf.data.AUTOTUNE).with_options(options)


def seconds() -> list[float]:
    """How long it takes to let go of each of some iterators that have lived for a while."""
    from keras_par.keras_patches.inputs.iterator_disposal import let_go_aside

    found = []
    for _ in range(COUNT):
        iterator = iter(let_go_aside(tuned()))
        next(iterator)
        time.sleep(AGE)
        begun = time.monotonic()
        del iterator
        found.append(time.monotonic() - begun)
    return found


def fit(is_tuned: bool) -> dict:
    """How many iterators of a training and its evaluations were to be let go aside, and how many were soon after it."""
    import keras_par as kp
    from keras_par.keras_patches.inputs import iterator_disposal

    made, deleted = [], []
    iterate, delete = iterator_disposal.DeletedAside.__iter__, iterator_disposal._delete

    def noted(self):
        made.append(self)
        return iterate(self)

    def counted(handle):
        delete(handle)
        deleted.append(handle)

    iterator_disposal.DeletedAside.__iter__, iterator_disposal._delete = noted, counted
    try:
        with kp.DataParallel().scope():
            model = keras.Sequential([keras.layers.Input((300,)), keras.layers.Dense(1)])
            model.compile("sgd", "mse")
        model.fit(tuned(is_tuned), epochs=3, validation_data=tuned(is_tuned), verbose=0)
        end = time.monotonic() + 30
        while len(deleted) < len(made) and time.monotonic() < end:
            time.sleep(0.05)
    finally:
        iterator_disposal.DeletedAside.__iter__, iterator_disposal._delete = iterate, delete
    return {"size": kp.size(), "made": len(made), "deleted": len(deleted)}


if __name__ == "__main__":
    print(json.dumps(seconds()))
