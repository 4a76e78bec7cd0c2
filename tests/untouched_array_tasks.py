"""Trains, evaluates and predicts on slices of one array, and finds which of that writes into the array."""

import keras
import numpy as np
import tensorflow as tf

BYTES = 64  # TensorFlow takes NumPy's memory as it is where it begins at a multiple of this, as each row here does
ROW = BYTES // 4
BATCH_SIZE = 16
METHODS = ("fit", "evaluate", "predict")
ON_BATCH = ("train_on_batch", "test_on_batch", "predict_on_batch")


def pictures(storage: str, num_rows: int, path: str) -> np.ndarray:
    """Rows of 255 that begin at multiples of 64 bytes: in memory, read-only, or mapped from the file at `path`."""
    memory = np.zeros(num_rows * BYTES + BYTES, "uint8")
    begin = -memory.ctypes.data % BYTES
    rows = memory[begin : begin + num_rows * BYTES].view("float32").reshape(num_rows, ROW)
    rows[:] = 255
    if storage == "read-only":
        rows.flags.writeable = False
    if storage in ("r", "r+"):
        np.save(path, rows)
        return np.load(path, mmap_mode=storage)
    return rows


class Slices(keras.utils.PyDataset):
    """Batches that are views of an array."""

    def __init__(self, rows: np.ndarray):
        super().__init__()
        self._rows = rows

    def __len__(self):
        return -(-len(self._rows) // BATCH_SIZE)

    def __getitem__(self, index):
        return self._rows[index * BATCH_SIZE : (index + 1) * BATCH_SIZE], targets(BATCH_SIZE)[: self.rest(index)]

    def rest(self, index: int) -> int:
        return min(BATCH_SIZE, len(self._rows) - index * BATCH_SIZE)


def targets(num_rows: int) -> np.ndarray:
    return np.zeros([num_rows, 1], "float32")


def batches(rows: np.ndarray):
    slices = Slices(rows)
    return (slices[index] for index in range(len(slices)))


def from_generator(rows: np.ndarray, kind: type = tf.TensorSpec) -> tf.data.Dataset:
    signature = (kind([None, ROW], tf.float32), tf.TensorSpec([None, 1]))
    return tf.data.Dataset.from_generator(lambda: batches(rows), output_signature=signature)


def data_loader(rows: np.ndarray):
    import torch

    numbers = [range(start, min(start + BATCH_SIZE, len(rows))) for start in range(0, len(rows), BATCH_SIZE)]

    class Views(torch.utils.data.Dataset):
        def __len__(self):
            return len(numbers)

        def __getitem__(self, index):
            own = rows[numbers[index].start : numbers[index].stop]
            return torch.from_numpy(own), torch.zeros(len(own), 1)

    return torch.utils.data.DataLoader(Views(), batch_size=None)


INPUTS = {
    "arrays": lambda rows: {"x": rows, "y": targets(len(rows)), "batch_size": BATCH_SIZE},
    "py_dataset": lambda rows: {"x": Slices(rows)},
    "generator": lambda rows: {"x": batches(rows)},
    "data_loader": lambda rows: {"x": data_loader(rows)},
    "dataset": lambda rows: {"x": tf.data.Dataset.from_tensor_slices((rows, targets(len(rows)))).batch(BATCH_SIZE)},
    "dataset_of_a_generator": lambda rows: {"x": from_generator(rows)},
    "ragged": lambda rows: {"x": from_generator(rows).map(lambda x, y: (tf.RaggedTensor.from_tensor(x), y))},
}


def rescaling() -> keras.Model:
    """A model whose first operation may be done in place."""
    model = keras.Sequential([keras.layers.Input([ROW]), keras.layers.Rescaling(1 / 255), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def strategy(mesh: tuple[int, int] | None, options: dict):
    import keras_par as kp

    if mesh is None:
        return kp.DataParallel(**options)
    layout_map = keras.distribution.LayoutMap(keras.distribution.DeviceMesh(mesh, ("batch", "model")))
    layout_map[".*dense.*kernel"] = ("model", None)
    return kp.ModelParallel(layout_map=layout_map, batch_dim_name="batch", **options)


class Watched:
    """Calls methods of a model, and notes those after which the rows are not what they were."""

    def __init__(self, storage: str, num_rows: int, folder: str):
        import keras_par as kp

        keras.utils.set_random_seed(1)
        self.rows = pictures(storage, num_rows, f"{folder}/rows-of-rank-{kp.rank()}.npy")
        self.guilty: list[str] = []
        self._before = self.rows.tobytes()
        self._model = rescaling()

    def call(self, name: str, kind: str, *args, **kwargs) -> None:
        getattr(self._model, name)(*args, **kwargs)
        if self.rows.tobytes() != self._before:
            self.guilty.append(f"{name} of {kind}")
            self.rows[:] = 255

    @property
    def outcome(self) -> dict:
        import keras_par as kp

        return {"size": kp.size(), "guilty": self.guilty}


def written_to(storage: str, num_rows: int, folder: str, kinds=tuple(INPUTS), mesh=None, **options) -> dict:
    """The number of ranks, and which calls left the rows of which input other than they were."""
    with strategy(mesh, options).scope():
        watched = Watched(storage, num_rows, folder)
        rows = watched.rows
        for kind in kinds:
            for name in METHODS:
                inputs = INPUTS[kind](rows)
                if name == "predict":
                    inputs.pop("y", None)
                watched.call(name, kind, **inputs, verbose=0)
        for name in ON_BATCH:
            batch = rows[:BATCH_SIZE]
            watched.call(name, "rows", batch, *([] if name == "predict_on_batch" else [targets(len(batch))]))
    return watched.outcome


def shared_out(storage: str, num_rows: int, folder: str) -> dict:
    """As `written_to`, for inputs that the user shards."""
    import keras_par as kp

    with kp.DataParallel().scope():
        watched = Watched(storage, num_rows, folder)
        for kind in ("py_dataset", "generator", "dataset_of_a_generator"):
            for name in METHODS:
                watched.call(name, kind, kp.data.shard(INPUTS[kind](watched.rows)["x"]), verbose=0)
    return watched.outcome
