"""Divides a matrix product over rows and columns, and shows which rank holds and sends what.

    keras-par run -np 8 examples/quickstart.py

Two products, (16, 32) by (32, 16) and then by (16, 16), with a ReLU between, on a mesh of 2 x 4 ranks. Each rank has
8 of the 16 rows; the columns of the input and the rows of the weights are divided by 4, so that every product ends
with a sum over 4 ranks. The layout of the ReLU is said, and what the layers after it do follows from it.
"""

import argparse
from pathlib import Path

import keras
import numpy as np

import keras_par as kp

ROWS, WIDTH, UNITS = 16, 32, 16


def strategy() -> kp.ModelParallel:
    mesh = keras.distribution.DeviceMesh((kp.size() // 4, 4), ("batch", "model"))
    layout_map = keras.distribution.LayoutMap(mesh)
    layout_map["inputs/output"] = ("batch", "model")
    layout_map["first/kernel"] = ("model", None)
    layout_map["relu/output"] = ("batch", "model")
    layout_map["second/kernel"] = ("model", None)
    return kp.ModelParallel(layout_map=layout_map, batch_dim_name="batch")


def build() -> keras.Model:
    x = inputs = keras.Input((WIDTH,))
    x = keras.layers.Identity(name="inputs")(x)
    x = keras.layers.Dense(UNITS, use_bias=False, name="first")(x)
    x = keras.layers.ReLU(name="relu")(x)
    model = keras.Model(inputs, keras.layers.Dense(UNITS, use_bias=False, name="second")(x), name="quickstart")
    model.compile(keras.optimizers.SGD(0.2, momentum=0.1), "mse")
    return model


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="2 epochs instead of 5")
    parser.add_argument("--folder", type=Path, default=Path("build/quickstart"), help="for checkpoints and plans")
    parser.add_argument("--alone", action="store_true", help="train without a strategy, to compare")
    args = parser.parse_args()
    kp.init()
    keras.utils.set_random_seed(1)
    generator = np.random.default_rng(1)
    x, y = (generator.normal(size=(ROWS, size)).astype("float32") for size in (WIDTH, UNITS))
    if args.alone:
        model = build()
    else:
        with strategy().scope():
            model = build()
    callbacks = [kp.callbacks.LossMonitor(every=2)]
    if not args.alone:
        callbacks.append(kp.callbacks.RankCheckpoint(args.folder))
    epochs = 2 if args.smoke else 5
    four_steps = np.tile(x, (4, 1)), np.tile(y, (4, 1))  # of the same batch
    history = model.fit(*four_steps, batch_size=ROWS, epochs=epochs, shuffle=False, verbose=0, callbacks=callbacks)
    print(f"rank {kp.rank()} of {kp.size()}: last loss {history.history['loss'][-1]:.7f}", flush=True)
    if not args.alone:
        kp.describe(model).save(args.folder / f"rank.{kp.rank()}" / "plan.txt")


if __name__ == "__main__":
    main()
