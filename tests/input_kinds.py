"""Every kind of input that `fit` takes, made of rows that can be told apart: row i is the number i.

A model that counts rows trains on them: its only weight has one entry a row, starts at 0, and each use of a row adds
exactly 1 to its entry, so that what was read, and with which weight, is seen after any number of ranks and epochs.
"""

import io
import warnings
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from tests.cases import rows

NUM_ROWS = 23  # neither 2 nor 3 ranks divide it, nor its last batch of 5
BATCH_SIZE = 6


def counter(from_pixels: bool = False) -> keras.Model:
    """A compiled model whose weight counts how often it was trained on each row."""
    if from_pixels:
        inputs = keras.layers.Input((4, 4, 1))
        numbers = keras.ops.cast(keras.ops.round(inputs[:, 0, 0, :]), "int32")
    else:
        inputs = numbers = keras.layers.Input((1,), dtype="int32", name="numbers")
    counts = keras.layers.Embedding(NUM_ROWS, 1, embeddings_initializer="zeros", name="counts")(numbers)
    model = keras.Model(inputs, keras.layers.Flatten()(counts))

    class Negative(keras.losses.Loss):
        def call(self, y_true, y_pred):
            return -y_pred[:, 0]

    model.compile(keras.optimizers.SGD(1.0), Negative(reduction="sum"))
    return model


def columns() -> tuple[np.ndarray, np.ndarray]:
    """The numbers of the rows as a column, and targets that nothing looks at."""
    return np.arange(NUM_ROWS, dtype="int32")[:, np.newaxis], np.zeros([NUM_ROWS, 1], "float32")


def batches(order=None):
    """The global batches as one process reads them."""
    x, y = columns()
    order = np.arange(NUM_ROWS) if order is None else order
    for start in range(0, NUM_ROWS, BATCH_SIZE):
        chosen = order[start : start + BATCH_SIZE]
        yield x[chosen], y[chosen]


class Batches(keras.utils.PyDataset):
    """A PyDataset of `batch_size` rows a batch that notes which batches were asked for."""

    def __init__(self, batch_size: int = BATCH_SIZE, **kwargs):
        super().__init__(**kwargs)
        self.batch_size = batch_size
        self.asked: list[int] = []

    def __len__(self):
        return -(-NUM_ROWS // self.batch_size)

    def __getitem__(self, index):
        self.asked.append(index)
        rows = slice(index * self.batch_size, (index + 1) * self.batch_size)
        return tuple(array[rows] for array in columns())


def arrays(batch_size: int = BATCH_SIZE):
    x, y = columns()
    return {"x": x, "y": y, "batch_size": batch_size}


def nest():
    x, y = columns()
    return {"x": {"numbers": x}, "y": y, "batch_size": BATCH_SIZE}


def frame():
    import pandas as pd

    x, y = columns()
    return {"x": pd.DataFrame({"number": x[:, 0]}), "y": pd.Series(y[:, 0]), "batch_size": BATCH_SIZE}


def hdf5():
    import h5py

    file = h5py.File(io.BytesIO(), "w")
    x, y = (file.create_dataset(name, data=array) for name, array in zip("xy", columns(), strict=True))
    return {"x": x, "y": y, "batch_size": BATCH_SIZE}


def npy_folder_reader(folder: str):
    """A reader of a file a row, that notes which rows were read: as CONTRIBUTING.md shows it."""
    import keras_par as kp

    class NpyFolder(kp.data.RowReader):
        def __init__(self, folder):
            self.paths = sorted_paths(folder)
            first = np.load(self.paths[0])
            self.shape, self.dtype = (len(self.paths), *first.shape), first.dtype
            self.numbers_read: list[int] = []

        def read(self, numbers):
            self.numbers_read += map(int, numbers)
            return np.stack([np.load(self.paths[number]) for number in numbers])

    return NpyFolder(folder)


def write_rows(folder: Path) -> None:
    """A file a row of 8 features."""
    for number, row in enumerate(rows(NUM_ROWS)[0]):
        np.save(folder / f"{number:03}.npy", row)


def train_on_files(folder: str, distributed: bool, **fit) -> dict:
    """The weights after two epochs on rows in files, and which rows this rank has read, besides the first and last."""
    from tests.tasks import build, strategy_scope

    keras.utils.set_random_seed(7)
    x = npy_folder_reader(folder) if distributed else np.stack([np.load(path) for path in sorted_paths(folder)])
    with strategy_scope(distributed):
        model = build()
    model.fit(x, rows(NUM_ROWS)[1], batch_size=BATCH_SIZE, epochs=2, verbose=0, **fit)
    read = x.numbers_read if distributed else []
    return {"weights": [np.asarray(weight) for weight in model.get_weights()], "read": read}


def sorted_paths(folder: str) -> list[Path]:
    return sorted(Path(folder).glob("*.npy"))


def dataset(batch_size: int = BATCH_SIZE):
    return {"x": tf.data.Dataset.from_tensor_slices(columns()).batch(batch_size)}


def shuffled_dataset():
    return {"x": tf.data.Dataset.from_tensor_slices(columns()).shuffle(NUM_ROWS).batch(BATCH_SIZE)}


def unknown_dataset():
    return {"x": tf.data.Dataset.from_tensor_slices(columns()).filter(lambda x, y: True).batch(BATCH_SIZE)}


def py_dataset():
    return {"x": Batches()}


def py_dataset_with_workers():
    return {"x": Batches(workers=2)}


def py_dataset_in_processes():
    return {"x": Batches(workers=2, use_multiprocessing=True)}


def generator():
    order = np.random.default_rng(5).permutation(NUM_ROWS)  # row S6: the same seed on every rank
    return {"x": batches(order), "epochs": 1}


def generator_without_targets():
    return {"x": ((x, y, None) for x, y in batches()), "epochs": 1}


def data_loader(batch_size: int = BATCH_SIZE):
    import torch

    torch.manual_seed(3)
    rows = torch.utils.data.TensorDataset(*map(torch.from_numpy, columns()))
    return {"x": torch.utils.data.DataLoader(rows, batch_size=batch_size, shuffle=True)}


def images(folder: str):
    return {
        "x": keras.utils.image_dataset_from_directory(
            folder, color_mode="grayscale", image_size=(4, 4), batch_size=BATCH_SIZE, seed=2, verbose=False
        )
    }


def write_images(folder: Path) -> None:
    """One 4x4 picture a row, whose brightness is the row's number."""
    for number in range(NUM_ROWS):
        path = folder / f"class{number % 2}" / f"{number}.png"
        path.parent.mkdir(exist_ok=True)
        keras.utils.save_img(path, np.full([4, 4, 1], number, "uint8"), scale=False)


GLOBAL = {
    kind.__name__: kind
    for kind in (
        arrays,
        nest,
        frame,
        hdf5,
        dataset,
        shuffled_dataset,
        unknown_dataset,
        py_dataset,
        py_dataset_with_workers,
        py_dataset_in_processes,
        generator,
        generator_without_targets,
        data_loader,
        images,
    )
}


def counts_after(data: dict, **fit) -> list:
    """How often training for 2 epochs used each row."""
    from_pixels = getattr(data["x"], "class_names", None) is not None
    model = counter(from_pixels)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Your input ran out of data", UserWarning)
        warnings.filterwarnings("ignore", ".*use_multiprocessing|.*fork", DeprecationWarning)
        model.fit(**{"epochs": 2, "verbose": 0, **data, **fit})
    return model.get_layer("counts").get_weights()[0][:, 0].tolist()


def count_global(kind: str, options: dict | None = None, **arguments) -> list:
    """Counts of rows of an input that all ranks are given alike; `options` of the strategy, None for one process."""
    keras.utils.set_random_seed(11)
    if options is None:
        return counts_after(GLOBAL[kind](**arguments))
    import keras_par as kp

    with kp.DataParallel(**options).scope():
        return counts_after(GLOBAL[kind](**arguments))


def count_shards(kind: str, remainder: str, folder: str | None = None) -> dict:
    """Counts of rows of an input that the user sharded by kp.data.shard, and the steps of an epoch."""
    import keras_par as kp

    keras.utils.set_random_seed(11)
    local = BATCH_SIZE // kp.size()
    whole = {
        "arrays": lambda: columns(),
        "nest": lambda: ({"numbers": columns()[0]}, columns()[1]),
        "frame": lambda: (frame()["x"], frame()["y"]),
        "dataset": lambda: tf.data.Dataset.from_tensor_slices(columns()),
        "shuffled_dataset": lambda: tf.data.Dataset.from_tensor_slices(columns()).shuffle(NUM_ROWS),
        "unknown_dataset": lambda: tf.data.Dataset.from_tensor_slices(columns()).filter(lambda x, y: True),
        "files": lambda: files(folder),
        "few_batches": lambda: tf.data.Dataset.from_tensor_slices(columns()).batch(NUM_ROWS),
        "py_dataset": lambda: Batches(batch_size=local),
        "generator": lambda: batches(np.random.default_rng(5).permutation(NUM_ROWS)),
        "data_loader": lambda: data_loader(local)["x"],
    }[kind]()
    share = kp.data.shard(whole, remainder=remainder)
    if kind == "files":
        share = tf.data.TextLineDataset(share).map(lambda line: (tf.strings.to_number([line], tf.int32), [0.0]))
    if isinstance(share, tf.data.Dataset) and kind != "few_batches":
        share = share.batch(local)
    with kp.DataParallel().scope():
        model = counter()
        epochs = 1 if kind == "generator" else 2
        model.fit(share, epochs=epochs, verbose=0)
    return {
        "counts": model.get_layer("counts").get_weights()[0][:, 0].tolist(),
        "steps": int(model.optimizer.iterations.value),
        "asked": sorted(set(whole.asked)) if kind == "py_dataset" else None,
    }


def numbers_tested() -> list:
    """The mean of the rows' numbers in fit's validation and in evaluate, and how many rows predict returns."""
    import keras_par as kp

    assert kp.size() > 1
    x, _ = columns()
    with kp.DataParallel(remainder="drop").scope():
        model = counter()
        model.compile("sgd", "mse", metrics=[keras.metrics.MeanMetricWrapper(lambda true, _: true, name="number")])
        logs = model.fit(x, x, batch_size=BATCH_SIZE, validation_data=(x, x), verbose=0).history
        tested = model.evaluate(x, x, batch_size=BATCH_SIZE, verbose=0, return_dict=True)
        return [*logs["val_number"], tested["number"], len(model.predict(x, batch_size=BATCH_SIZE, verbose=0))]


def files(folder: str) -> list[Path]:
    """A file a row, with its number."""
    names = [Path(folder) / f"row{number}.txt" for number in range(NUM_ROWS)]
    for number, name in enumerate(names):
        if not name.exists():
            name.write_text(f"{number}\n")
    return names


def augmented(labels: str) -> list[str]:
    """What a rank logs where a `map` adds other numbers on each rank, and labels are all other or all alike."""
    import keras_par as kp
    from tests.random_tasks import logged

    x = np.ones((NUM_ROWS, 3), "float32")
    y = np.arange(NUM_ROWS) % (NUM_ROWS if labels == "telling" else 1)
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH_SIZE).map(lambda x, y: (x + float(kp.rank()), y))
    with logged() as messages, kp.DataParallel().scope():
        model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.0), "mse")
        model.fit(data, epochs=2, verbose=0)
    return [message for message in messages if "rows" in message]


def count_slices(lengths: list[int]) -> dict:
    """Counts where each rank feeds its own slice of the rows, of unequal length, as arrays (row S7)."""
    import keras_par as kp

    stop = int(np.cumsum(lengths)[kp.rank()])
    x, y = (array[stop - lengths[kp.rank()] : stop] for array in columns())
    with kp.DataParallel(auto_shard_dataset=False).scope():
        model = counter()
        model.fit(x, y, batch_size=2, epochs=2, verbose=0)
    return {
        "counts": model.get_layer("counts").get_weights()[0][:, 0].tolist(),
        "steps": int(model.optimizer.iterations.value),
    }


def said(which: str) -> list[str]:
    """What a rank logs in two epochs on rows that 2 ranks do not divide."""
    import logging

    import keras_par as kp

    messages: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("keras_par").addHandler(handler)
    try:
        if which == "unequal":
            count_slices([17, 6])
        elif which == "fit":
            count_global("arrays", {"remainder": "drop"})
        else:
            kp.data.shard(columns(), remainder=which)
    finally:
        logging.getLogger("keras_par").removeHandler(handler)
    return messages


def warnings_about(which: str) -> list[str]:
    """What each rank warns of when the ranks are given different data as if it were the same."""
    import keras_par as kp

    keras.utils.set_random_seed(kp.rank() if which in ("seed", "twice") else 1)
    x, y = columns()
    if which == "arrays":
        x = x[::-1] if kp.rank() else x
    data = {"arrays": lambda: {"x": x, "y": y, "batch_size": BATCH_SIZE, "shuffle": False}}.get(which, shuffled_dataset)
    if which == "same seed":
        data = shuffled_dataset
    from tests.random_tasks import logged

    with logged() as messages, kp.DataParallel().scope():
        for _ in range(1 + (which == "twice")):
            counter().fit(**data(), epochs=2, verbose=0)
    return [message for message in messages if "on rank 0" in message or "the same rows" in message]


def unlike_loaders(how: str, marked: bool) -> list:
    """How often two epochs use each row of a DataLoader whose order comes from generators that stand apart."""
    import torch

    import keras_par as kp
    from tests.random_tasks import logged

    keras.utils.set_random_seed(11)
    torch.manual_seed(100 + kp.rank())
    own = torch.Generator().manual_seed(200 + kp.rank())
    data = torch.utils.data.TensorDataset(*map(torch.from_numpy, columns()))
    given = {
        "global": {"shuffle": True},
        "own": {"shuffle": True, "generator": own},
        "sampler": {"sampler": torch.utils.data.RandomSampler(data, generator=own)},
    }[how]
    loader = torch.utils.data.DataLoader(data, batch_size=6, **given)
    with logged() as messages, kp.DataParallel().scope():
        model = counter()
        model.fit(kp.data.shard(loader) if marked else loader, epochs=2, verbose=0)
    assert kp.size() > 1
    return [model.get_layer("counts").get_weights()[0][:, 0].tolist(), messages]
