"""A training in which one rank has the fault that its arguments say, at the moment they say.

faulty_training.py FOLDER RANK MOMENT FAULT SIZE THREADS

THREADS says whether all ranks have a thread that Python waits for. The culprit writes FOLDER/fault when it begins.
"""

import atexit
import ctypes
import os
import signal
import sys
import threading
import time
from pathlib import Path

from tests.launcher import rank_of_this_process

folder, culprit, moment, fault, size, threads = sys.argv[1:]
FIRST = os.environ.get("KERAS_PAR_RESTART_COUNT", "0") == "0"
STEPS, EPOCHS = 6, 3


def at(name: str, step: int = 0):
    """Has the fault if this is the rank and the moment for it."""
    if rank_of_this_process() != int(culprit) or f"{name}{step or ''}" != moment or not FIRST:
        return
    Path(folder, "fault").touch()
    if fault == "outside":  # somebody else's, who waits for this
        return time.sleep(1)
    if fault == "error":
        raise ValueError("E" * int(size) + " trouble")
    if fault == "output":
        print("O" * int(size), flush=True)
        print("O" * int(size), file=sys.stderr, flush=True)
        raise ValueError("trouble")
    if fault == "memory":
        raise MemoryError("trouble")
    if fault == "interrupt":
        raise KeyboardInterrupt
    if fault == "exit":
        sys.exit(3)
    if fault == "gone":
        os._exit(7)
    if fault == "atexit":
        atexit.register(time.sleep, 1000)
        raise ValueError("trouble")
    if fault == "exec":
        os.execvp("sleep", ["sleep", "1000"])
    if fault == "closed":
        os.closerange(0, 1000)
        raise ValueError("trouble")
    if fault == "segmentation":
        ctypes.string_at(0)
    if fault == "abort":
        os.abort()
    if fault in ("SIGKILL", "SIGSTOP", "SIGTERM"):
        os.kill(os.getpid(), getattr(signal, fault))
    time.sleep(1000)  # a hang, and what a signal leaves


if threads == "threads":
    threading.Thread(target=time.sleep, args=(1000,), name="uploader").start()
at("import")
import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

import keras_par as kp  # noqa: E402

kp.init()
at("begin")


class Layer(keras.layers.Layer):
    """Counts its calls in Python, as an operation of the graph."""

    calls = 0

    def compute_output_spec(self, x, training=False):
        return keras.KerasTensor(x.shape, x.dtype)

    def call(self, x, training=False):
        def count(value):
            Layer.calls += 1
            at("layer", Layer.calls)
            return value

        return tf.ensure_shape(tf.py_function(count, [x], x.dtype), x.shape) if training else x


class At(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        at("step", batch + 1)

    def on_epoch_end(self, epoch, logs=None):
        at("epoch", epoch + 1)

    def on_test_batch_end(self, batch, logs=None):
        at("evaluate")

    def on_predict_batch_end(self, batch, logs=None):
        at("predict")

    def on_train_end(self, logs=None):
        at("end")


def batches():
    numbers = np.random.default_rng(0)
    for step in range(STEPS * EPOCHS):
        at("input", step + 1)
        x = numbers.normal(size=(8, 4)).astype("float32")
        yield x, x[:, :1]


keras.utils.set_random_seed(1)
with kp.DataParallel().scope():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8), Layer(), keras.layers.Dense(1)])
    model.compile("adam", "mse")
checkpoints = Path(folder, "checkpoints")
callbacks = [kp.callbacks.RankCheckpoint(checkpoints, every=2), kp.callbacks.Resume(checkpoints), At()]
model.fit(batches(), epochs=EPOCHS, steps_per_epoch=STEPS, verbose=2, callbacks=callbacks)
x = np.ones((16, 4), "float32")
model.evaluate(x, x[:, :1], verbose=0, callbacks=[At()])
model.predict(x, verbose=0, callbacks=[At()])
model.save(Path(folder, f"model.{kp.rank()}.keras"))
at("script")
print("trained", flush=True)
kp.shutdown()
at("late")
os._exit(0) if threads == "threads" else None
