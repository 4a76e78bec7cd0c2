"""A script written for Keras on JAX: a transformer divided by heads and by columns, on a mesh of batch and model.

    keras-par run -np 4 examples/layout_map_transformer.py

On TensorFlow it needs the two lines that are marked; everything else is Keras.
"""

import argparse

import keras
import numpy as np

import keras_par as kp  # added

LENGTH, WIDTH, HEADS, WORDS = 16, 32, 4, 32


def layout(mesh: keras.distribution.DeviceMesh) -> keras.distribution.LayoutMap:
    layout_map = keras.distribution.LayoutMap(mesh)
    layout_map["words/embeddings"] = ("model", None)
    layout_map["attention.*(query|key|value)/kernel"] = (None, "model", None)
    layout_map["attention.*(query|key|value)/bias"] = ("model", None)
    layout_map["attention.*attention_output/kernel"] = ("model", None, None)
    layout_map["up.*kernel"] = (None, "model")
    layout_map["up.*bias"] = ("model",)
    layout_map["down.*kernel"] = ("model", None)
    return layout_map


def build(num_blocks: int = 2) -> keras.Model:
    inputs = keras.Input((LENGTH,), dtype="int32")
    x = keras.layers.Embedding(WORDS, WIDTH, name="words")(inputs)
    for i in range(num_blocks):
        inner = keras.layers.LayerNormalization()(x)
        x = x + keras.layers.MultiHeadAttention(HEADS, WIDTH // HEADS, name=f"attention_{i}")(inner, inner)
        inner = keras.layers.Dense(4 * WIDTH, "gelu", name=f"up_{i}")(keras.layers.LayerNormalization()(x))
        x = x + keras.layers.Dense(WIDTH, name=f"down_{i}")(inner)
    return keras.Model(inputs, keras.layers.Dense(2)(keras.layers.GlobalAveragePooling1D()(x)))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="one epoch instead of 5")
    args = parser.parse_args()
    kp.init()  # added

    devices = keras.distribution.list_devices()
    shape = (2, len(devices) // 2) if len(devices) > 1 else (1, 1)
    mesh = keras.distribution.DeviceMesh(shape=shape, axis_names=("batch", "model"), devices=devices)
    strategy = keras.distribution.ModelParallel(layout_map=layout(mesh), batch_dim_name="batch")
    keras.distribution.set_distribution(strategy)

    keras.utils.set_random_seed(1)
    model = build()
    model.compile(keras.optimizers.Adam(1e-3), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    x = np.random.default_rng(1).integers(0, WORDS, (512, LENGTH))
    y = (x == 0).any(axis=1).astype("int32")
    history = model.fit(x, y, batch_size=32, epochs=1 if args.smoke else 5, verbose=0)
    norm = float(np.sqrt(sum(np.square(weights).sum() for weights in model.get_weights())))
    print(f"last loss {history.history['loss'][-1]:.5f}, norm of weights {norm:.5f}")


if __name__ == "__main__":
    main()
