"""A training loop by hand on ranks, and what it says of itself."""

from unittest import mock

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from tests.random_tasks import logged


def say(odd: bool, in_function: bool) -> list[str]:
    """What two steps by hand say, of a model with looked-up rows and batch normalization if it is `odd`."""
    import keras_par as kp
    from keras_par.comm import custom_loop

    inputs = layers.Input((3,))
    first = layers.Embedding(5, 4) if odd else layers.Rescaling(0.5)
    hidden = layers.Flatten()(first(inputs))
    outputs = layers.Dense(1)(layers.BatchNormalization()(hidden) if odd else hidden)
    model = keras.Model(inputs, outputs)
    model(np.zeros((2, 3)), training=False)
    optimizer, reducer = keras.optimizers.Adam(), kp.GradientReducer()

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x, training=True)))
        optimizer.apply(reducer(tape.gradient(loss, model.trainable_variables)), model.trainable_variables)

    optimizer.build(model.trainable_variables)
    kp.broadcast_variables(model.variables)
    unsaid = mock.patch.multiple(custom_loop, _said=set(), _normalized=[])
    with logged() as messages, unsaid:
        run = tf.function(step) if in_function else step
        for _ in range(2):
            run(tf.constant(np.random.default_rng(kp.rank()).integers(0, 5, (4, 3)).astype("float32")))
    return [each for each in messages if "by hand" in each]
