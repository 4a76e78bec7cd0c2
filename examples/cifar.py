"""CIFAR-10 for examples/resnet50.py and examples/mobilenet.py, or, where it is not on disk, images of its shape."""

import argparse
from typing import NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds

import keras_par as kp

NUM_FILES = 16  # file shards a split is written in, so that up to as many ranks each read their own
MEAN, STDDEV = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)  # of CIFAR-10's training images, from 0 to 1


class GeneratedImages(tfds.core.GeneratorBasedBuilder):
    """2000 images of 32 x 32 pixels to train on and 500 to test on: ten coarse colour patterns, shifted, with noise.

    Made by a generator of random numbers with a fixed seed, so they are the same everywhere.
    """

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        return tfds.core.DatasetInfo(
            builder=self,
            features=tfds.features.FeaturesDict(
                {
                    "image": tfds.features.Image(shape=(32, 32, 3), encoding_format="png"),
                    "label": tfds.features.ClassLabel(num_classes=10),
                }
            ),
            supervised_keys=("image", "label"),
        )

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples(1, 2000), "test": self._generate_examples(2, 500)}

    def _generate_examples(self, seed, num_rows):
        patterns = np.random.default_rng(0).uniform(0, 255, (10, 4, 4, 3)).repeat(8, axis=1).repeat(8, axis=2)
        random = np.random.default_rng(seed)
        for number in range(num_rows):
            label = number % 10
            image = np.roll(patterns[label], random.integers(-4, 5, 2), axis=(0, 1)) + random.normal(0, 40, (32, 32, 3))
            yield number, {"image": image.clip(0, 255).astype("uint8"), "label": label}


def arguments(description: str, batch_size: int, has_auto: bool = False) -> argparse.Namespace:
    """The command line that both examples have; `batch_size` is the default, in rows a rank."""
    parser = argparse.ArgumentParser(description=description)
    if has_auto:
        parser.add_argument("--auto", action="store_true", help="let kp.search find the strategy")
    parser.add_argument("--epochs", type=int, default=10, help="(%(default)s)")
    parser.add_argument("--batch-size", type=int, default=batch_size, help="rows a rank (%(default)s)")
    parser.add_argument("--image-size", type=int, default=224, help="edge to which images are resized (%(default)s)")
    parser.add_argument("--data-dir", default="data", help="where data sets are kept (%(default)s)")
    parser.add_argument("--download", action="store_true", help="download CIFAR-10 if it is not on disk")
    parser.add_argument("--smoke", action="store_true", help="four steps of 8 rows a rank, on images of 32 x 32")
    args = parser.parse_args()
    if args.smoke:
        args.epochs, args.batch_size, args.image_size = 2, 8, 32
    return args


class Data(NamedTuple):
    """What `fit` and `evaluate` need: this rank's rows, in batches of one rank, and how many steps an epoch has."""

    name: str
    train: tf.data.Dataset
    steps_per_epoch: int
    test: tf.data.Dataset


def load(args: argparse.Namespace) -> Data:
    """The data set, on all ranks; says aloud which one it is."""
    builder, name = prepared(args)
    train, test = (kp.data.load_tfds(builder, split, as_supervised=True) for split in ("train", "test"))
    num_rows = builder.info.splits["train"].num_examples
    if kp.rank() == 0:
        shards = builder.info.splits["train"].num_shards
        print(f"data: {name}, {num_rows} rows in {shards} file shard(s)", flush=True)
    steps = 2 if args.smoke else num_rows // kp.size() // args.batch_size
    test = test.map(lambda image, label: (normalized(image, args.image_size), label), tf.data.AUTOTUNE)
    test = test.batch(local_rows(args))
    return Data(name, augmented(train, args), steps, test.take(2) if args.smoke else test)


def prepared(args: argparse.Namespace) -> tuple[tfds.core.DatasetBuilder, str]:
    """The builder of the data set that is there, written by rank 0 if it was not."""
    files = tfds.download.DownloadConfig(num_shards=NUM_FILES)
    if kp.rank() == 0 and args.download:
        tfds.builder("cifar10", data_dir=args.data_dir).download_and_prepare(download_config=files)
    kp.barrier()
    cifar10 = tfds.builder("cifar10", data_dir=args.data_dir)
    if cifar10.is_prepared():
        return cifar10, "CIFAR-10"
    if kp.rank() == 0:
        GeneratedImages(data_dir=args.data_dir).download_and_prepare(download_config=files)
    kp.barrier()
    return GeneratedImages(data_dir=args.data_dir), "generated images, not CIFAR-10"


def augmented(rows: tf.data.Dataset, args: argparse.Namespace) -> tf.data.Dataset:
    """Endless batches of this rank's rows, each cropped at random, flipped at random, resized and normalized.

    The ranks have different rows, so each draws other random numbers; with the same ones the i-th rows of all ranks
    would be cropped and flipped alike.
    """
    rows = rows.shuffle(10_000, seed=1)
    place = kp.rank() * args.batch_size // local_rows(args)  # ranks that divide a model have the same rows
    numbers = tf.data.Dataset.random(seed=1 + place, rerandomize_each_iteration=True).batch(2)

    def augment(row, seed):
        image, label = row
        image = tf.pad(image, [[4, 4], [4, 4], [0, 0]])
        image = tf.image.stateless_random_crop(image, [32, 32, 3], seed)
        image = tf.image.stateless_random_flip_left_right(image, seed)
        return normalized(image, args.image_size), label

    batches = tf.data.Dataset.zip((rows, numbers)).map(augment, tf.data.AUTOTUNE)
    return batches.batch(local_rows(args), drop_remainder=True).repeat().prefetch(2)


def local_rows(args: argparse.Namespace) -> int:
    """Rows of a step on this rank, under the strategy that is set."""
    return kp.local_batch_size(args.batch_size * kp.size())


def normalized(image: tf.Tensor, size: int) -> tf.Tensor:
    image = tf.image.resize(tf.cast(image, tf.float32), [size, size])
    return (image / 255.0 - MEAN) / STDDEV
