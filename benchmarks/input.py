"""Measures what it costs a rank to read its own share of JPEG images out of files that hold those of all ranks.

    python -m benchmarks input

Two ranks read at the same time, each on one core, tf.data's autotuning off. All figures are rows per second of one
rank, and ratios of medians over rounds that alternate within one run. A share is compared with the same rows in files
that hold nothing else, read by the same pipeline without sharding; a second plain pipeline against the first shows how
much of a ratio is noise. With `--shards 2 8` the two ranks also read what two ranks of eight would read.

    decode = lambda record: ...                    # parses a record and decodes its image
    records, before   kp.data.shard(TFRecordDataset(paths)).map(decode)
    files, before     TFRecordDataset(kp.data.shard(Dataset.from_tensor_slices(paths))).map(decode)
    records, after    kp.data.shard(TFRecordDataset(paths).map(decode))     # the trap: all ranks decode all rows
    load_tfds         kp.data.load_tfds(builder, "train")
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.jobs import alternate, environment, mpirun, part

RANKS = 2
BATCH_SIZE = 32
PLAIN, AGAIN, PLAIN_TFDS, AGAIN_TFDS = "plain", "plain, again", "plain tfds", "plain tfds, again"
BEFORE, FILES, AFTER, TFDS = "records, before", "files, before", "records, after", "load_tfds"
GOAL = 0.95


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=11, help="readings of each pipeline (%(default)s)")
    parser.add_argument("--rows", type=int, default=2048, help="images in the data set (%(default)s)")
    parser.add_argument("--pixels", type=int, default=160, help="height and width of an image (%(default)s)")
    parser.add_argument("--files", type=int, default=8, help="files of the data set (%(default)s)")
    parser.add_argument("--shards", type=int, nargs="+", default=[2, 8], help="shards it is cut into (%(default)s)")
    parser.add_argument(
        "--clock", choices=("wall", "cpu"), default="wall", help="cpu: where others use the machine too"
    )
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.folder:
        return worker(args)
    with tempfile.TemporaryDirectory() as folder:
        launch(Path(folder))
        ranks = [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(RANKS)]
    show(ranks)
    if args.json:
        args.json.write_text(json.dumps(ranks, indent=2))


def launch(folder):
    """Runs the measurement on the ranks, which leave their figures in `folder`."""
    command = [*mpirun(RANKS), *part("input", *sys.argv[1:], "--folder", folder)]
    subprocess.run(command, env=environment(), stdout=subprocess.DEVNULL, check=True)


def show(ranks):
    from rich.console import Console
    from rich.table import Table

    table = Table("shards", "pipeline", "rows/s", "against", "rows/s", "ratio by rank", "quartiles", "goal")
    for rows in zip(*ranks, strict=True):
        first = rows[0]
        table.add_row(
            str(first["shards"]),
            first["pipeline"],
            " ".join(f"{row['rows_per_second'][0]:.0f}" for row in rows),
            first["against"],
            " ".join(f"{row['rows_per_second'][1]:.0f}" for row in rows),
            " ".join(f"{row['ratio']:.3f}" for row in rows),
            " ".join("{:.3f}-{:.3f}".format(*row["quartiles"]) for row in rows),
            "" if first["pipeline"] in (AGAIN, AGAIN_TFDS, AFTER) else f"{GOAL:.2f}",
        )
    Console(width=130).print(table)


def worker(args):
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    import keras_par as kp

    kp.init()
    paths = [str(args.folder / f"{number}.tfrecord") for number in range(args.files)]
    if kp.rank() == 0:
        write_records(paths, images(args.rows, args.pixels))
        write_tfds(args.folder, args.files, (raw for path in paths for raw in records(path)))
    kp.barrier()
    figures = []
    for shards in args.shards:
        figures += measure(args, paths, shards)
    (args.folder / f"{kp.rank()}.json").write_text(json.dumps(figures))
    kp.barrier()


def measure(args, paths, num_shards):
    """The figures of this rank, which reads the share of its number of `num_shards`."""
    import tensorflow as tf

    import keras_par as kp

    shard_id = kp.rank()
    own_folder = args.folder / f"{shard_id} of {num_shards}"
    own_folder.mkdir()
    own_paths = [str(own_folder / Path(path).name) for path in paths]

    def share(dataset):
        return kp.data.shard(dataset, num_shards, shard_id)

    for number, path in enumerate(paths):  # the same rows as of the strided share, in as many files
        before = number * args.rows // args.files
        write_records([own_paths[number]], list(records(path))[(shard_id - before) % num_shards :: num_shards])
    pipelines = {
        PLAIN: tf.data.TFRecordDataset(own_paths).map(decode),
        AGAIN: tf.data.TFRecordDataset(own_paths).map(decode),
        BEFORE: share(tf.data.TFRecordDataset(paths)).map(decode),
        FILES: tf.data.TFRecordDataset(share(tf.data.Dataset.from_tensor_slices(paths))).map(decode),
        AFTER: share(tf.data.TFRecordDataset(paths).map(decode)),
    }
    whole = {"num_shards": num_shards, "shard_id": shard_id, "data_dir": args.folder}
    write_tfds(own_folder, args.files, (row["image"].numpy() for row in from_tfds(whole, raw=True)))
    pipelines[TFDS] = from_tfds(whole).map(lambda row: row["image"])
    for name in (PLAIN_TFDS, AGAIN_TFDS):
        own = {"num_shards": 1, "shard_id": 0, "data_dir": own_folder}
        pipelines[name] = from_tfds(own).map(lambda row: row["image"])
    clock = {"wall": time.perf_counter, "cpu": time.process_time}[args.clock]
    reading = {name: reading_of(dataset, clock) for name, dataset in pipelines.items()}
    counts = {name: read()[1] for name, read in reading.items()}
    assert len(set(counts.values())) == 1, counts
    systems = list(reading)
    times = dict(zip(systems, alternate([lambda r=reading[s]: r()[0] for s in systems], args.rounds), strict=True))
    pairs = [(AGAIN, PLAIN), (BEFORE, PLAIN), (FILES, PLAIN), (AFTER, PLAIN)]
    pairs += [(AGAIN_TFDS, PLAIN_TFDS), (TFDS, PLAIN_TFDS)]
    return [figure(num_shards, a, b, counts[PLAIN], times[a], times[b]) for a, b in pairs]


def images(count, pixels):
    """JPEG files, each of other coarse noise made smooth, at about 0.5 bytes a pixel."""
    import tensorflow as tf

    generator = tf.random.Generator.from_seed(1)
    for _ in range(count):
        coarse = generator.uniform([pixels // 8, pixels // 8, 3], 0, 255)
        fine = tf.image.resize(coarse, [pixels, pixels], "bicubic") + generator.normal([pixels, pixels, 3], 0, 8)
        yield tf.io.encode_jpeg(tf.cast(tf.clip_by_value(fine, 0, 255), tf.uint8), quality=90).numpy()


def write_records(paths, raw_images):
    """Writes TFRecord files of equally many images, one behind another."""
    import tensorflow as tf

    rows = list(raw_images)
    for number, path in enumerate(paths):
        begin, end = number * len(rows) // len(paths), (number + 1) * len(rows) // len(paths)
        with tf.io.TFRecordWriter(path) as writer:
            for raw in rows[begin:end]:
                feature = tf.train.Feature(bytes_list=tf.train.BytesList(value=[raw]))
                example = tf.train.Example(features=tf.train.Features(feature={"image": feature}))
                writer.write(example.SerializeToString())


def records(path):
    """The raw images in a TFRecord file."""
    import tensorflow as tf

    for record in tf.data.TFRecordDataset(path).as_numpy_iterator():
        yield tf.train.Example.FromString(record).features.feature["image"].bytes_list.value[0]


def decode(record):
    import tensorflow as tf

    example = tf.io.parse_single_example(record, {"image": tf.io.FixedLenFeature([], tf.string)})
    return tf.io.decode_jpeg(example["image"], 3)


def write_tfds(folder, num_files, raw_images):
    """Prepares a tensorflow-datasets data set of the images below `folder`."""
    import io

    import tensorflow_datasets as tfds

    tfds.disable_progress_bar()

    class JpegImages(tfds.core.GeneratorBasedBuilder, skip_registration=True):
        VERSION = tfds.core.Version("1.0.0")

        def _info(self):
            image = tfds.features.Image(shape=(None, None, 3), encoding_format="jpeg")
            return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict({"image": image}))

        def _split_generators(self, dl_manager):
            return {"train": self._generate_examples()}

        def _generate_examples(self):
            for number, raw in enumerate(raw_images):
                yield number, {"image": io.BytesIO(raw)}

    builder = JpegImages(data_dir=folder)
    builder.download_and_prepare(download_config=tfds.download.DownloadConfig(num_shards=num_files))


def from_tfds(whole, raw=False):
    """Rows by load_tfds, read and decoded by one thread and never cached."""
    import tensorflow_datasets as tfds

    import keras_par as kp

    config = tfds.ReadConfig(
        try_autocache=False,
        skip_prefetch=True,
        num_parallel_calls_for_decode=1,
        num_parallel_calls_for_interleave_files=1,
    )
    decoders = {"image": tfds.decode.SkipDecoding()} if raw else None
    return kp.data.load_tfds("jpeg_images", "train", **whole, decoders=decoders, read_config=config)


def reading_of(images, clock):
    """A function that reads all batches of a pipeline; returns its seconds and the number of rows."""
    import tensorflow as tf

    import keras_par as kp

    options = tf.data.Options()
    options.autotune.enabled = False
    options.threading.private_threadpool_size = 1
    batches = images.batch(BATCH_SIZE).prefetch(2).with_options(options)

    def read():
        kp.barrier()
        count, begin = 0, clock()
        for batch in batches:
            count += len(batch)
        return clock() - begin, count

    return read


def figure(shards, pipeline, against, rows, ours, theirs):
    """Throughput of ours divided by theirs; quartiles are of the ratios round by round."""
    low, _, high = statistics.quantiles([b / a for a, b in zip(ours, theirs, strict=True)], n=4)
    a, b = statistics.median(ours), statistics.median(theirs)
    return {
        "shards": shards,
        "pipeline": pipeline,
        "against": against,
        "rows_per_second": [rows / a, rows / b],
        "ratio": b / a,
        "quartiles": [low, high],
    }


if __name__ == "__main__":
    main()
