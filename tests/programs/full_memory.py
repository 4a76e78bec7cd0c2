"""Trains while a callback reads a file that its host's memory does not hold: full_memory.py FOLDER.

The test limits the memory of all ranks once each has written `ready.<rank>`, and then writes `limited`.
"""

import os
import sys
import time
from pathlib import Path

import keras
import numpy as np

import keras_par as kp

PAGE, NUM_PAGES, STEPS = 4096, 60_000, 40


class Reads(keras.callbacks.Callback):
    """Reads a number of each page after each step, once memory is limited."""

    every_rank_writes = True

    def __init__(self, folder: Path):
        super().__init__()
        self.folder = folder
        self.file = np.memmap(folder / "file", "uint8", "r", shape=(NUM_PAGES, PAGE))

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 0:
            return
        (self.folder / f"ready.{kp.rank()}").touch()
        while not (self.folder / "limited").exists():
            time.sleep(0.1)
        descriptor = os.open(self.folder / "file", os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)  # pages that were there are no rank's
        os.close(descriptor)

    def on_train_batch_end(self, batch, logs=None):
        if (self.folder / "limited").exists():
            int(self.file[:, 0].sum())


def main(folder: Path) -> None:
    kp.init()
    with kp.DataParallel().scope():
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    rows = np.ones((2 * STEPS, 8))
    model.fit(rows, rows[:, :1], batch_size=2, epochs=2, verbose=0, callbacks=[Reads(folder)])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
