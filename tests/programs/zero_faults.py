"""Trains in a stage of ZeRO; the last rank is killed once, where others wait for it in a collective or a file.

zero_faults.py STAGE CHECKPOINTS [KIND@TIMES]
"""

import hashlib
import os
import signal
import sys
import time

import keras
import numpy as np
import tensorflow as tf

import keras_par as kp
from keras_par.checkpoint import files
from keras_par.comm.shared_memory import SharedMemoryCommunicator

LATE_SECONDS = 0.5  # for the others to come to where this one is missed

stage, directory, *deaths = sys.argv[1:]
kp.init()
keras.utils.set_random_seed(1)
dies = kp.rank() == kp.size() - 1 and os.environ["KERAS_PAR_RESTART_COUNT"] == "0"
counts: dict[str, int] = {}


def die_at(kind: str, times: int) -> None:
    """Counts a moment, and kills this process at the one that is meant."""
    counts[kind] = counts.get(kind, 0) + 1
    if dies and counts[kind] == times:
        print(f"killed at {time.time()} in {kind} {times}", flush=True)
        time.sleep(LATE_SECONDS)
        os.kill(os.getpid(), signal.SIGKILL)


def before_collective(kind: str, times: int) -> None:
    """The moment is the beginning of a collective in a step, in which the other ranks are by then."""
    collective = getattr(SharedMemoryCommunicator, kind)

    def replacement(self, given, name, *options):
        if tf.executing_eagerly():
            return collective(self, given, name, *options)
        with tf.control_dependencies([tf.py_function(lambda: die_at(kind, times), [], [])]):
            given = [tf.identity(each) for each in given] if isinstance(given, list) else tf.identity(given)
        return collective(self, given, name, *options)

    setattr(SharedMemoryCommunicator, kind, replacement)


def before_sync(times: int) -> None:
    """The moment is that at which a file is written but not safe."""
    fsync = os.fsync

    def replacement(file):
        die_at("checkpoint", times)
        return fsync(file)

    files.os.fsync = replacement


for death in deaths:
    kind, times = death.split("@")
    if kind == "checkpoint":
        before_sync(int(times))
    else:
        before_collective(kind, int(times))
x = np.random.default_rng(0).normal(size=(64, 24)).astype("float32")
with kp.DataParallel(zero=int(stage), zero_min_kb=0).scope():
    model = keras.Sequential([keras.Input((24,)), *(keras.layers.Dense(24, "tanh") for _ in range(3))])
    model.compile(keras.optimizers.Adam(0.01), "mse")
callbacks = [kp.callbacks.Resume(directory), kp.callbacks.RankCheckpoint(directory, every=3)]
model.fit(x, x, batch_size=8, epochs=3, verbose=0, callbacks=callbacks)
weights = b"".join(weight.tobytes() for weight in model.get_weights())
state = b"".join(np.asarray(each).tobytes() for each in model.optimizer.variables)
print(f"weights {hashlib.sha256(weights + state).hexdigest()[:16]} of {kp.size()}", flush=True)
