"""A script written for Keras on JAX: a classifier of digits whose wide layers are divided by a layout map.

    keras-par run -np 2 examples/layout_map_mlp.py

On TensorFlow it needs the two lines that are marked; everything else is Keras.
"""

import argparse

import keras
import numpy as np
from sklearn.datasets import load_digits

import keras_par as kp  # added


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="one epoch instead of 5")
    args = parser.parse_args()
    kp.init()  # added

    devices = keras.distribution.list_devices()
    mesh = keras.distribution.DeviceMesh(shape=(1, len(devices)), axis_names=("batch", "model"), devices=devices)
    layout_map = keras.distribution.LayoutMap(mesh)
    layout_map["wide/kernel"] = (None, "model")
    layout_map["wide/bias"] = ("model",)
    layout_map["narrow/kernel"] = ("model", None)
    strategy = keras.distribution.ModelParallel(layout_map=layout_map, batch_dim_name="batch")
    keras.distribution.set_distribution(strategy)

    keras.utils.set_random_seed(1)
    inputs = keras.Input((64,))
    x = keras.layers.Dense(256, "relu", name="wide")(inputs)
    x = keras.layers.Dense(64, "relu", name="narrow")(x)
    model = keras.Model(inputs, keras.layers.Dense(10, name="logits")(x))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-3), loss, metrics=["accuracy"])

    digits = load_digits()
    x, y = (digits.data / 16).astype("float32"), digits.target
    history = model.fit(x, y, batch_size=64, epochs=1 if args.smoke else 5, verbose=0)
    accuracy = model.evaluate(x, y, batch_size=64, verbose=0)[1]
    norm = float(np.sqrt(sum(np.square(weights).sum() for weights in model.get_weights())))
    print(f"last loss {history.history['loss'][-1]:.5f}, accuracy {accuracy:.4f}, norm of weights {norm:.5f}")


if __name__ == "__main__":
    main()
