"""A training that gets into the troubles its arguments name, each on the last rank and at a step of its own.

train.py CHECKPOINTS NUM_EPOCHS [TROUBLE@STEP ...]
"""

import atexit
import hashlib
import os
import pathlib
import signal
import subprocess
import sys
import time

import keras
import numpy as np
import tensorflow as tf

import keras_par as kp

SECONDS = float(os.environ.get("TROUBLE_SECONDS", "6"))  # of a trouble that passes
PAUSE = float(os.environ.get("PAUSE", "0.02"))  # seconds, of each step, so that there is time to look

directory, num_epochs, *troubles = sys.argv[1:]
kp.init()
keras.utils.set_random_seed(1)
keras.distribution.set_distribution(kp.DataParallel())
is_culprit = kp.rank() == kp.size() - 1
at = {int(step): name for name, step in (trouble.split("@") for trouble in troubles)}
width = int(os.environ.get("WIDTH", "4"))
is_first = os.environ.get("KERAS_PAR_RESTART_COUNT", "0") == "0"


def say(name):
    print(f"trouble {name} at {time.time()}", flush=True)


def rows():
    """40 batches of 2 rows for each rank; the culprit may be late with one of them."""
    numbers = np.random.default_rng(0).random((40 * 2 * kp.size(), 8)).astype("float32")
    for step in range(40):
        if at.get(step + 1) == "input" and is_culprit:
            say("input")
            time.sleep(SECONDS)
        for number in numbers[step * 2 * kp.size() : (step + 1) * 2 * kp.size()]:
            yield number, number.sum(keepdims=True)


class Trouble(keras.callbacks.Callback):
    """Calls the trouble of a step, counted from 1, once the step is done."""

    reads_own_logs = True  # so that no collective of fit's own comes between two steps

    def on_train_batch_end(self, batch, logs=None):
        time.sleep(PAUSE)
        name, _, argument = at.get(batch + 1, "input").partition(".")
        trouble = getattr(self, name, None)
        if trouble is not None and is_first:
            trouble(*[int(argument)] if argument else [])

    def loop(self):
        if is_culprit:
            say("loop")
            end = time.monotonic() + SECONDS
            while time.monotonic() < end:
                pass

    def stop(self):
        if is_culprit:
            say("stop")
            subprocess.Popen(["sh", "-c", f"sleep {SECONDS}; kill -CONT {os.getpid()}"])
            os.kill(os.getpid(), signal.SIGSTOP)

    def skip(self):
        if is_culprit:
            say("skip")
        else:
            kp.barrier()

    def part(self):
        if is_culprit:
            say("part")
            kp.broadcast_variables(self.model.weights)
        else:
            kp.barrier()

    def error(self):
        if is_culprit:
            say("error")
            raise ValueError("this is the trouble")

    def common(self):
        if not is_culprit:  # which is rank 0, the first to come to mind
            atexit.register(time.sleep, 9)
        raise ValueError("this is the trouble of all")

    def leave(self, rank):
        if kp.rank() == rank:
            sys.exit(0)

    def nan(self):
        self.model.weights[0].assign(self.model.weights[0] * np.nan)

    def kill(self):
        if is_culprit:
            say("kill")
            os.kill(os.getpid(), signal.SIGKILL)

    def on_interrupt(self, epoch_is_complete):
        if "save" in at.values() and kp.rank() == 0:
            say("save")
            while not pathlib.Path(directory, "saved").exists():
                time.sleep(0.1)
        if "save" in at.values():
            kp.barrier()
            say("saved")


class Pair(keras.metrics.MeanSquaredError):
    """A metric that is no scalar, as F1Score is."""

    def result(self):
        return keras.ops.stack([super().result()] * 2)


signature = (tf.TensorSpec([8]), tf.TensorSpec([1]))
data = tf.data.Dataset.from_generator(rows, output_signature=signature).batch(2 * kp.size(), drop_remainder=True)
data = data.apply(tf.data.experimental.assert_cardinality(40))
options = tf.data.Options()
options.autotune.enabled = False
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(width, "tanh"), keras.layers.Dense(1)])
model.compile("adam", "mse", metrics=[Pair()])
callbacks = [Trouble(), *([kp.callbacks.LossMonitor()] if "nan" in at.values() else [])]
if directory != "none":
    callbacks += [kp.callbacks.Resume(directory), kp.callbacks.RankCheckpoint(directory, every=7)]
model.fit(data.with_options(options).prefetch(1), epochs=int(num_epochs), callbacks=callbacks, verbose=0)
weights = b"".join(weight.tobytes() for weight in model.get_weights())
print(f"weights {hashlib.sha256(weights).hexdigest()[:16]}", flush=True)
