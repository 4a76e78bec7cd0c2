"""Trains a small network on as many ranks as it is started on; started again, it goes on from the newest checkpoint.

    python examples/kubernetes/train.py --folder ckpt
    keras-par run -np 2 examples/kubernetes/train.py --folder ckpt

docs/clusters/kubernetes.md starts it in Pods.
"""

import argparse

import keras
import numpy as np

import keras_par as kp

ROWS, WIDTH = 2048, 16


def main():
    args = arguments()
    kp.init()
    keras.utils.set_random_seed(1)
    x = np.random.default_rng(2).normal(size=(ROWS, WIDTH)).astype("float32")
    y = np.sin(x.sum(axis=1))
    with kp.DataParallel().scope():
        model = keras.Sequential([keras.layers.Dense(64, "relu"), keras.layers.Dense(1)])
        model.compile(keras.optimizers.Adam(0.01), "mse")
    history = model.fit(
        *(x, y),
        batch_size=64,  # the whole job's
        epochs=args.epochs,
        verbose=2 if kp.rank() == 0 else 0,
        callbacks=[kp.callbacks.Resume(args.folder), kp.callbacks.RankCheckpoint(args.folder, every=args.every)],
    )
    loss = model.evaluate(x, y, verbose=0)
    print(
        f"rank {kp.rank()} of {kp.size()}: loss {loss:.6f} after {len(history.epoch)} epoch(s) here\n",
        end="",
        flush=True,
    )


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", default="ckpt", help="of checkpoints, which all ranks must see (%(default)s)")
    parser.add_argument("--epochs", type=int, default=40, help="of the whole training (%(default)s)")
    parser.add_argument("--every", type=int, default=32, help="steps from one checkpoint to the next (%(default)s)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
