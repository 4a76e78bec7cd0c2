"""Trainings that stop somewhere, go on from a checkpoint, and should end as if they had not stopped."""

import contextlib
import errno
import io
import os
import shutil
import time
import warnings
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import keras
import numpy as np
import tensorflow as tf

from tests.cases import rows

NUM_ROWS = 75  # in batches of 16: 5 steps an epoch, the last of 11 rows


def model() -> keras.Model:
    """All kinds of state: dropout's seeds, moving statistics, momenta, accumulated gradients, metrics."""
    result = keras.Sequential(
        [
            keras.layers.Input((8,)),
            keras.layers.Dense(16, "relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(3),
        ]
    )
    result.compile(
        keras.optimizers.Adam(1e-2, gradient_accumulation_steps=3, use_ema=True, ema_overwrite_frequency=4),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return result


def smooth_model() -> keras.Model:
    """What every number of ranks trains alike: nothing random, nothing of a rank's own rows."""
    result = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(16, "tanh"), keras.layers.Dense(3)])
    result.compile(
        keras.optimizers.Adam(1e-2, gradient_accumulation_steps=2),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return result


class Batches(keras.utils.PyDataset):
    """The rows in batches."""

    def __init__(self, batch_size: int = 16, **options):
        super().__init__(**options)
        self._batch_size = batch_size

    def __len__(self):
        return -(-NUM_ROWS // self._batch_size)

    def __getitem__(self, index):
        return tuple(array[self._batch_size * index :][: self._batch_size] for array in rows(NUM_ROWS))


def hdf5():
    import h5py

    file = h5py.File(io.BytesIO(), "w")
    x, y = (file.create_dataset(name, data=array) for name, array in zip("xy", rows(NUM_ROWS), strict=True))
    return {"x": x, "y": y, "batch_size": 16}


def endless():
    generator = np.random.default_rng(4)
    x, y = rows(NUM_ROWS)
    while True:
        chosen = generator.integers(0, NUM_ROWS, 16)
        yield x[chosen], y[chosen]


def dataset():
    return tf.data.Dataset.from_tensor_slices(rows(NUM_ROWS))


def loader(own_generator: bool):
    import torch

    torch.manual_seed(3)
    data = torch.utils.data.TensorDataset(*map(torch.from_numpy, rows(NUM_ROWS)))
    generator = torch.Generator().manual_seed(4) if own_generator else None
    return torch.utils.data.DataLoader(data, batch_size=16, shuffle=True, generator=generator)


def own_rows():
    import keras_par as kp

    # 12 rows a batch of the whole job on 1, 2, 3 and 4 ranks, so that all numbers of ranks have the same batches
    return kp.data.shard(dataset().shuffle(NUM_ROWS)).batch(12 // kp.size())


def sampled_rows():
    import keras_par as kp

    x, y = rows(NUM_ROWS)
    numbers = kp.data.DistributedSampler(NUM_ROWS, seed=3, remainder="exact").dataset()
    return numbers.map(lambda number: (tf.gather(x, number), tf.gather(y, number))).batch(12 // kp.size())


def own_batches():
    import keras_par as kp

    return kp.data.shard(Batches(16 // kp.size()))


DATA = {
    "arrays": lambda: {"x": rows(NUM_ROWS)[0], "y": rows(NUM_ROWS)[1], "batch_size": 16},
    "hdf5": hdf5,
    "dataset": lambda: {"x": dataset().shuffle(NUM_ROWS).batch(16)},
    "shuffled twice": lambda: {"x": dataset().shuffle(NUM_ROWS).map(lambda x, y: (x + 0.1, y)).shuffle(20).batch(16)},
    "repeated": lambda: {"x": dataset().shuffle(NUM_ROWS).batch(16).repeat(), "steps_per_epoch": 4},
    "unknown length": lambda: {"x": dataset().shuffle(NUM_ROWS).filter(lambda x, y: True).batch(16)},
    "py_dataset": lambda: {"x": Batches()},
    "py_dataset in parts": lambda: {"x": Batches(8), "steps_per_epoch": 4},  # an order goes on in the next epoch
    "generator": lambda: {"x": endless(), "steps_per_epoch": 5},
    "loader": lambda: {"x": loader(own_generator=False)},
    "loader with a generator": lambda: {"x": loader(own_generator=True)},
    "cached": lambda: {"x": dataset().shuffle(NUM_ROWS).cache().shuffle(20).batch(16)},
    "shards of batches": lambda: {"x": own_batches()},
    "sampler": lambda: {"x": sampled_rows()},
    "shard": lambda: {"x": own_rows()},
}


class Stop(keras.callbacks.Callback):
    """Raises on every rank after a step, or at the end of an epoch (step None); both count from 1."""

    reads_own_logs = True

    def __init__(self, epoch: int, step: int | None):
        super().__init__()
        self._at = (epoch, step)
        self._epoch = 0

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch = epoch + 1

    def on_train_batch_end(self, batch, logs=None):
        if (self._epoch, batch + 1) == self._at:
            raise RuntimeError("stopped")

    def on_epoch_end(self, epoch, logs=None):
        if (epoch + 1, None) == self._at:
            raise RuntimeError("stopped")


def fit(
    folder: str,
    data: str,
    stop=None,
    epochs: int = 4,
    smooth: bool = False,
    arguments: dict | None = None,
    evaluate_first: bool = False,
    **options,
) -> dict:
    """Trains from the newest checkpoint in `folder` on, as a fresh script would, to the end or to `stop`."""
    import keras_par as kp

    keras.utils.set_random_seed(21)
    resume = kp.callbacks.Resume(folder)
    checkpoint = kp.callbacks.RankCheckpoint(folder, **{"every": 1, **options})
    callbacks = [resume, checkpoint]
    at_epoch_ends = {}  # at the end of training Keras overwrites the weights by their moving average

    def keep_weights(epoch, logs):
        at_epoch_ends[epoch] = trained.get_weights()

    callbacks.append(keras.callbacks.LambdaCallback(on_epoch_end=keep_weights))
    if evaluate_first:

        def evaluate(logs):
            x, y = rows(NUM_ROWS)
            trained.evaluate(x, y, batch_size=16, verbose=0)

        callbacks.insert(0, keras.callbacks.LambdaCallback(on_train_begin=evaluate))
    if stop is not None:
        callbacks.append(Stop(*stop))
    scope = kp.DataParallel().scope() if kp.size() > 1 else contextlib.nullcontext()
    with scope, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Your input ran out of data|Gradients do not|.*use_ema", UserWarning)
        trained = smooth_model() if smooth else model()
        try:
            trained.fit(**{**DATA[data](), **(arguments or {})}, epochs=epochs, verbose=0, callbacks=callbacks)
        except RuntimeError as error:
            assert stop is not None and str(error) == "stopped", error
        else:
            assert stop is None, "it should have stopped"
    return {
        "weights": trained.get_weights(),
        "at epoch ends": at_epoch_ends,
        "slots": [np.array(variable.value) for variable in trained.optimizer.variables],
        "logs": getattr(trained, "history", None) and trained.history.history,
        "from": resume.resumed_from,
        "names": [path.stem for path in checkpoint.checkpoints()],
        "files": sorted(path.name for path in checkpoint.folder.iterdir()),
    }


def fit_stepping(folder: str, **options) -> dict:
    """As `fit`, with two steps per execution, of which the last of an epoch has one."""
    compile_model = keras.Model.compile
    with mock.patch.object(keras.Model, "compile", lambda *a, **k: compile_model(*a, **k, steps_per_execution=2)):
        return fit(folder, asynchronous=False, **options)


def fit_once(folder: str, data: str, **options) -> dict:
    """An uninterrupted training in a folder that was not used before."""
    import keras_par as kp

    if kp.rank() == 0:
        shutil.rmtree(folder, ignore_errors=True)
    kp.barrier()
    return fit(folder, data, **options)


def resume_only(folder: str, seed: int = 21) -> dict:
    """From which checkpoint a run begins, and what it warns of."""
    import keras_par as kp

    resume = kp.callbacks.Resume(folder)
    keras.utils.set_random_seed(seed)
    with kp.DataParallel().scope():
        trained = model()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trained.fit(**DATA["arrays"](), epochs=1, verbose=0, callbacks=[resume])
    return {
        "from": resume.resumed_from,
        "warnings": [str(each.message) for each in caught if str(each.message).startswith("keras-par")],
    }


class Losses(keras.callbacks.Callback):
    """Gives callbacks after it these losses instead of an epoch's own, so that it is known which is best."""

    reads_own_logs = True

    def __init__(self, losses: list[float]):
        super().__init__()
        self._losses = losses

    def on_epoch_end(self, epoch, logs=None):
        logs["loss"] = self._losses[epoch]


def fit_with_losses(folder: str, losses: list[float], **options) -> list[str]:
    """The checkpoints in a folder after epochs with these losses."""
    import keras_par as kp

    checkpoint = kp.callbacks.RankCheckpoint(folder, **options)
    with kp.DataParallel().scope():
        trained = smooth_model()
    trained.fit(**DATA["arrays"](), epochs=len(losses), verbose=0, callbacks=[Losses(losses), checkpoint])
    return sorted(path.stem for path in checkpoint.checkpoints())


def by_the_clock(folder: str, period: float) -> list[str]:
    """The checkpoints of 25 steps, which take a second each by rank 0's clock, and next to nothing by the others'."""
    import keras_par as kp
    from keras_par.callbacks import rank_checkpoint

    now = [0.0]

    def step(batch, logs):
        now[0] += 1.0 if kp.rank() == 0 else 1e-6

    clock = SimpleNamespace(monotonic=lambda: now[0])
    with mock.patch.object(rank_checkpoint, "time", clock), kp.DataParallel().scope():
        checkpoint = kp.callbacks.RankCheckpoint(
            folder, every=10**6, every_seconds=period, keep=None, asynchronous=False
        )
        trained = smooth_model()
        callbacks = [keras.callbacks.LambdaCallback(on_train_batch_begin=step), checkpoint]
        trained.fit(**DATA["arrays"](), epochs=5, verbose=0, callbacks=callbacks)
    return [path.stem for path in checkpoint.checkpoints()]


@contextlib.contextmanager
def slow_files(duration: float):
    """While each file takes `duration` seconds to write."""
    from keras_par.checkpoint import writer

    write = writer.write_arrays

    def slowly(path, arrays):
        time.sleep(duration)
        return write(path, arrays)

    with mock.patch.object(writer, "write_arrays", slowly):
        yield


def slow_disk(folder: str, duration: float) -> dict:
    """How long the callback held up a step where each file takes `duration` seconds to write, and what was written."""
    import keras_par as kp

    lengths = []

    class Timed(kp.callbacks.RankCheckpoint):
        def on_train_batch_end(self, batch, logs=None):
            kp.barrier()  # one rank may have traced its step faster
            begin = time.monotonic()
            super().on_train_batch_end(batch, logs)
            lengths.append(time.monotonic() - begin)

    checkpoint = Timed(folder, every=1)
    with slow_files(duration), kp.DataParallel().scope():
        trained = smooth_model()
        trained.fit(**DATA["arrays"](), epochs=1, verbose=0, callbacks=[checkpoint])
    return {"longest save": max(lengths), "names": [path.stem for path in checkpoint.checkpoints()]}


def fail_and_fit_again(folder: str, duration: float) -> list[str]:
    """The checkpoints of two fits with one callback, of which the first ends by an error while a file is written."""
    import keras_par as kp
    from keras_par.checkpoint import folder as folders
    from keras_par.checkpoint.reader import Reader

    checkpoint = kp.callbacks.RankCheckpoint(folder, every=3)
    with slow_files(duration), kp.DataParallel().scope():
        trained = smooth_model()
        with contextlib.suppress(RuntimeError):
            trained.fit(**DATA["arrays"](), epochs=1, verbose=0, callbacks=[checkpoint, Stop(1, 4)])
        trained.fit(**DATA["arrays"](), epochs=1, verbose=0, callbacks=[checkpoint])
    return [Reader(Path(folder), manifest).manifest.name for manifest in folders.complete(Path(folder), "CKP")]


def refusals(folder: str, options: list[dict]) -> list[str]:
    """What is said of RankCheckpoints with these options."""
    import keras_par as kp

    said = []
    for each in options:
        try:
            kp.callbacks.RankCheckpoint(folder, **each)
            said.append("nothing")
        except Exception as error:
            said.append(f"{type(error).__name__}: {error}")
    return said


def full_disk(folder: str, rank: int) -> None:
    """Trains where one rank's disk is full."""
    import keras_par as kp
    from keras_par.checkpoint import files

    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    patch = mock.patch.object(files.os, "fsync", full) if kp.rank() == rank else contextlib.nullcontext()
    with patch, kp.DataParallel().scope():
        trained = smooth_model()
        trained.fit(**DATA["arrays"](), epochs=2, verbose=0, callbacks=[kp.callbacks.RankCheckpoint(folder)])
