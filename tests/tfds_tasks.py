"""What the pools run to test kp.data.load_tfds: each function is called on every rank by its name."""

import contextlib
import logging
import os
from pathlib import Path

import keras
import numpy as np

from tests.tasks import build, strategy_scope


@contextlib.contextmanager
def said():
    """The sentences that keras_par logs meanwhile."""
    found: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: found.append(record.getMessage())
    logger = logging.getLogger("keras_par")
    logger.addHandler(handler)
    try:
        yield found
    finally:
        logger.removeHandler(handler)


def numbers(dataset) -> list[int]:
    assert int(dataset.cardinality()) == sum(1 for _ in dataset)
    return [int(row["number"]) for row in dataset]


def write(data_dir: str, num_rows: int, num_files: int) -> None:
    """Rank 0 writes the data set."""
    import keras_par as kp
    from tests import numbers_builder

    try:
        if kp.rank() == 0:
            numbers_builder.write(data_dir, num_rows, num_files)
    finally:
        kp.barrier()


def load(data_dir: str, split: str = "train", num_readings: int = 1, **options) -> dict:
    """The numbers of this rank's rows, what was logged, and what tfds.even_splits gives this rank."""
    import tensorflow_datasets as tfds

    import keras_par as kp
    from tests.numbers_builder import NumberedRows

    with said() as sentences:
        dataset = kp.data.load_tfds("numbered_rows", split, data_dir=data_dir, **options)
    own = tfds.even_splits(split, kp.size())[kp.rank()]
    try:
        even = NumberedRows(data_dir=data_dir).as_dataset(split=own)
    except ValueError:  # tensorflow-datasets refuses to read no rows
        even = []
    return {
        "rows": [numbers(dataset) for _ in range(num_readings)],
        "even": [int(row["number"]) for row in even],
        "said": sentences,
        "policy": dataset.batch(2).map(lambda row: row).options().experimental_distribute.auto_shard_policy.name,
    }


def load_without_others_files(folders: list, keep: list) -> list:
    """This rank's row numbers, read from a copy of the data set that has only the files of the given numbers."""
    import tensorflow_datasets as tfds

    import keras_par as kp

    folder = Path(folders[kp.rank()])
    for path in folder.glob("*train.tfrecord*"):
        if int(path.name.split("tfrecord-")[1][:5]) not in keep[kp.rank()]:
            path.unlink()
    assert len(list(folder.glob("*train.tfrecord*"))) == len(keep[kp.rank()])
    return numbers(kp.data.load_tfds(tfds.builder_from_directory(str(folder)), "train"))


def load_every_shard(data_dir: str, num_shards: int) -> list:
    """The rows of every shard, loaded by rank 0 alone while the others do something else."""
    import keras_par as kp

    if kp.rank() > 0:
        return []
    return [
        numbers(kp.data.load_tfds("numbered_rows", "train", data_dir=data_dir, num_shards=num_shards, shard_id=i))
        for i in range(num_shards)
    ]


def download(data_dir: str, by_name: bool, only_first_asks: bool = False) -> dict:
    """This rank's rows of a data set that is prepared by the call, and how often this rank prepared it."""
    import keras_par as kp
    from tests.numbers_builder import NumberedRows

    NumberedRows.num_rows, before = 24, NumberedRows.num_generated
    builder = "numbered_rows" if by_name else NumberedRows(data_dir=data_dir)
    asks = kp.rank() == 0 or not only_first_asks
    dataset = kp.data.load_tfds(builder, "train", data_dir=data_dir, download=asks)
    return {"rows": numbers(dataset), "generated": NumberedRows.num_generated - before}


def fail(which: str, data_dir: str) -> None:
    """Loads what cannot be loaded, on one rank or on all."""
    import keras_par as kp
    from tests.numbers_builder import NumberedRows

    name, split, options = "numbered_rows", "train", {"data_dir": data_dir}
    if which == "unknown":
        name = "no_such_data_set"
    elif which == "not prepared":
        options["data_dir"] = os.path.join(data_dir, "empty")
    elif which == "not on one rank":
        options["data_dir"] = os.path.join(data_dir, "empty") if kp.rank() == 1 else data_dir
    elif which == "no split":
        split = "no_such_split"
    elif which == "no rows":
        split = "train[:0]"
    elif which == "download":
        NumberedRows.broken = kp.rank() == 0
        options |= {"data_dir": os.path.join(data_dir, "broken"), "download": True}
    elif which == "seeds":
        options |= {"seed": kp.rank()}
    elif which == "remainder":
        options |= {"remainder": "pad"}
    elif which == "download a shard":
        options |= {"download": True, "num_shards": 2, "shard_id": 0}
    try:
        kp.data.load_tfds(name, split, **options)
    finally:
        NumberedRows.broken = False


def without_the_package() -> None:
    """Loads with tensorflow-datasets hidden."""
    import sys

    import keras_par as kp

    before = sys.modules.get("tensorflow_datasets")
    sys.modules["tensorflow_datasets"] = None  # type: ignore[assignment]
    try:
        kp.data.load_tfds("mnist", "train")
    finally:
        del sys.modules["tensorflow_datasets"]
        if before is not None:
            sys.modules["tensorflow_datasets"] = before


def train(data_dir: str) -> dict:
    """The weights after two epochs of fit in batches of 6 a rank, and the numbers of this rank's rows."""
    import keras_par as kp

    keras.utils.set_random_seed(7 + kp.rank())
    rows = numbers(kp.data.load_tfds("numbered_rows", "train", data_dir=data_dir))
    data = kp.data.load_tfds("numbered_rows", "train", data_dir=data_dir, as_supervised=True).batch(6)
    with strategy_scope(True):
        model = build()
    model.fit(data, epochs=2, verbose=0)
    return {"weights": model.get_weights(), "rows": rows}


def train_in_order(order: list, batch_size: int) -> list:
    """One process's weights after two epochs on the training rows of those numbers."""
    from tests.cases import rows

    x, y = rows(24, 0)
    keras.utils.set_random_seed(7)
    model = build()
    model.fit(x[order], y[order], batch_size=batch_size, epochs=2, shuffle=False, verbose=0)
    return [np.asarray(weight) for weight in model.get_weights()]
