"""Trains a small network on handwritten digits, on as many ranks as it is started on.

    python examples/mnist.py
    keras-par run -np 2 examples/mnist.py

It takes MNIST where tensorflow-datasets has it on disk or can download it, otherwise the digits of scikit-learn.
"""

import argparse
import hashlib

import keras
import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds

import keras_par as kp


def main():
    args = arguments()
    kp.init()
    data = load(args.data_dir, args.download)
    keras.utils.set_random_seed(1)  # after the data, whose preparation draws random numbers the first time
    if args.smoke:
        data |= {"train": data["train"].take(256), "epochs": 2}
    batch_size = args.batch_size or 32 * kp.size()  # a batch in fit is the whole job's
    train = data["train"].shuffle(10_000).batch(batch_size)
    test = data["test"].batch(batch_size)

    with kp.DataParallel().scope():
        model = network(data)
        model.compile(
            keras.optimizers.SGD(data["learning_rate"]),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    first_loss, _ = model.evaluate(test, verbose=0)
    model.fit(
        train,
        epochs=args.epochs or data["epochs"],
        shuffle=False,  # the dataset shuffles
        verbose=2 if kp.rank() == 0 else 0,
        callbacks=[kp.callbacks.LossMonitor(every=len(train))],
    )
    last_loss, accuracy = model.evaluate(test, verbose=0)

    print(f"rank {kp.rank()} of {kp.size()}: weights {weight_hash(model)}", flush=True)
    kp.barrier()
    if kp.rank() == 0:
        print(f"{data['name']}: test loss {first_loss:.4f} -> {last_loss:.4f}, test accuracy {accuracy:.4f}")
        if args.save:
            model.save_weights(args.save)
        if args.compare:
            compare(model, args.compare)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, help="default: 10 on MNIST, 30 on scikit-learn's digits")
    parser.add_argument("--batch-size", type=int, help="rows of a batch on all ranks together; default: 32 a rank")
    parser.add_argument("--data-dir", default="data", help="where data sets are kept (%(default)s)")
    parser.add_argument("--download", action="store_true", help="download MNIST if it is not on disk")
    parser.add_argument("--save", metavar="FILE.weights.h5", help="save the weights at the end")
    parser.add_argument("--compare", metavar="FILE.weights.h5", help="print the distance to weights saved before")
    parser.add_argument("--smoke", action="store_true", help="a few rows and epochs only")
    return parser.parse_args()


def load(data_dir, download):
    """The data set's splits, normalized, and the hyper-parameters that go with it."""
    mnist = tfds.builder("mnist", data_dir=data_dir)
    if kp.rank() == 0 and download and not mnist.is_prepared():
        mnist.download_and_prepare()
    kp.barrier()
    if mnist.is_prepared():
        builder, name = mnist, "MNIST"
        settings = {"learning_rate": 1e-2, "epochs": 10, "stddev": 0.01}
    else:
        from digits import prepare

        if kp.rank() == 0:
            prepare(data_dir)
        kp.barrier()
        builder, name = prepare(data_dir), "scikit-learn's digits"
        settings = {"learning_rate": 0.015, "epochs": 30, "stddev": 0.05}
    if kp.rank() == 0:
        shards = builder.info.splits["train"].num_shards
        print(f"data: {name}, {builder.info.splits['train'].num_examples} rows in {shards} file shard(s)", flush=True)

    def normalize(image, label):
        return (tf.cast(image, tf.float32) / 255.0 - 0.1307) / 0.3081, label

    options = tfds.ReadConfig(shuffle_seed=1)
    splits = {
        split: builder.as_dataset(split=split, as_supervised=True, read_config=options).map(normalize)
        for split in ("train", "test")
    }
    return {**splits, **settings, "name": name, "shape": builder.info.features["image"].shape}


def network(data):
    def dense(units, activation=None):
        initializer = keras.initializers.RandomNormal(0.0, data["stddev"])
        return keras.layers.Dense(units, activation, kernel_initializer=initializer)

    return keras.Sequential(
        [
            keras.layers.Input(data["shape"]),
            keras.layers.Flatten(),
            dense(512, "relu"),
            dense(512, "relu"),
            dense(10),
        ]
    )


def weight_hash(model):
    """A short hash of all weights' bytes: equal hashes are equal weights."""
    digest = hashlib.sha256()
    for weight in model.get_weights():
        digest.update(np.ascontiguousarray(weight).tobytes())
    return digest.hexdigest()[:16]


def compare(model, path):
    """Prints how far the model's weights are from those in the file `path`."""
    ours = np.concatenate([weight.ravel() for weight in model.get_weights()])
    model.load_weights(path)
    theirs = np.concatenate([weight.ravel() for weight in model.get_weights()])
    distance = np.linalg.norm(ours - theirs) / np.linalg.norm(ours)
    print(f"relative distance of these weights from those in {path}: {distance:.2e}")


if __name__ == "__main__":
    main()
