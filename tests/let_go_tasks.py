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
    """50 batches of 8 rows, whose map and prefetching tf.data tunes."""
    options = tf.data.Options()
    options.autotune.enabled = is_tuned
    ones = tf.ones([300, 300])
    dataset = tf.data.Dataset.from_tensor_slices((np.ones([400, 300], "float32"), np.ones(400, "float32")))
    dataset = dataset.batch(8).map(lambda x, y: (x @ ones, y), num_parallel_calls=tf.data.AUTOTUNE)
    return dataset.prefetch(tf.data.AUTOTUNE).with_options(options)


def seconds() -> list[float]:
    """How long it takes to let go of each of some iterators that have lived for a while."""
    from keras_par.seam.feed.let_go import let_go_aside

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
    """How many iterators were let go aside by a training and an evaluation, and threads that wait for any still."""
    import threading

    import keras_par as kp
    from keras_par.seam.feed import let_go

    made = []
    original = let_go.DeletedAside.__iter__

    def noted(self):
        made.append(self)
        return original(self)

    let_go.DeletedAside.__iter__ = noted
    try:
        with kp.DataParallel().scope():
            model = keras.Sequential([keras.layers.Input((300,)), keras.layers.Dense(1)])
            model.compile("sgd", "mse")
        model.fit(tuned(is_tuned), epochs=3, validation_data=tuned(is_tuned), verbose=0)
    finally:
        let_go.DeletedAside.__iter__ = original
    end = time.monotonic() + 30
    while any(thread.name == "keras-par-iterator" for thread in threading.enumerate()) and time.monotonic() < end:
        time.sleep(0.05)
    left = sum(thread.name == "keras-par-iterator" for thread in threading.enumerate())
    return {"size": kp.size(), "made": len(made), "left": left}


if __name__ == "__main__":
    print(json.dumps(seconds()))
