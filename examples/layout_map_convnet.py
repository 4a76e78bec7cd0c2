"""A script written for Keras on JAX: a convolutional network divided by channels, in a strategy's scope.

    keras-par run -np 2 examples/layout_map_convnet.py

On TensorFlow it needs the two lines that are marked; everything else is Keras.
"""

import argparse

import keras
import numpy as np
from sklearn.datasets import load_digits

import keras_par as kp  # added


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="one epoch instead of 3")
    args = parser.parse_args()
    kp.init()  # added

    mesh = keras.distribution.DeviceMesh((1, keras.distribution.get_device_count()), ("batch", "model"))
    layout_map = keras.distribution.LayoutMap(mesh)
    layout_map["conv2d.*kernel"] = (None, None, None, "model")
    layout_map["conv2d.*bias"] = ("model",)
    layout_map["dense/kernel"] = (None, "model")
    layout_map["dense/bias"] = ("model",)
    strategy = keras.distribution.ModelParallel(layout_map=layout_map)

    keras.utils.set_random_seed(1)
    with strategy.scope():
        inputs = keras.Input((8, 8, 1))
        x = keras.layers.Conv2D(16, 3, padding="same", activation="relu", name="conv2d_1")(inputs)
        x = keras.layers.MaxPooling2D()(x)
        x = keras.layers.Conv2D(32, 3, padding="same", activation="relu", name="conv2d_2")(x)
        x = keras.layers.Flatten()(x)
        x = keras.layers.Dense(64, "relu", name="dense")(x)
        model = keras.Model(inputs, keras.layers.Dense(10, name="logits")(x))
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.1, momentum=0.9), loss, metrics=["accuracy"])
        digits = load_digits()
        x, y = (digits.data / 16).reshape(-1, 8, 8, 1).astype("float32"), digits.target
        history = model.fit(x, y, batch_size=64, epochs=1 if args.smoke else 3, verbose=0)
    norm = float(np.sqrt(sum(np.square(weights).sum() for weights in model.get_weights())))
    print(f"last loss {history.history['loss'][-1]:.5f}, norm of weights {norm:.5f}")


if __name__ == "__main__":
    main()
