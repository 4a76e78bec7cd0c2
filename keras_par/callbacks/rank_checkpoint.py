"""Writes each rank's weights into a folder of its own, so that a kill at any moment leaves only whole files."""

import os
import re
from pathlib import Path
from typing import Literal

import keras

from keras_par.comm import world

SUFFIX = ".weights.h5"


class RankCheckpoint(keras.callbacks.Callback):
    """Saves weights and optimizer state as `<directory>/rank.<r>/<prefix>-<epoch>_<step>.weights.h5`.

    Each file is written under a temporary name and renamed when it is complete; `model.load_weights` reads it.
    Epochs and steps count from 1.

    Args:
        directory: folder of the whole job's checkpoints; each rank makes its own below it.
        prefix: how the files' names begin.
        every: "epoch", or a number of training steps.
        keep: how many of the newest files a rank keeps, None for all.

    Raises:
        ValueError: `every` or `keep` is less than 1, or `prefix` is no plain file name.
    """

    reads_own_logs = True

    def __init__(self, directory, prefix: str = "CKP", every: int | Literal["epoch"] = "epoch", keep: int | None = 5):
        super().__init__()
        if every != "epoch" and (not isinstance(every, int) or every < 1):
            raise ValueError(f"keras-par: RankCheckpoint(every={every!r}) must be 'epoch' or a number of steps.")
        if keep is not None and keep < 1:
            raise ValueError(f"keras-par: RankCheckpoint(keep={keep}) must be at least 1, or None to keep all.")
        if not prefix or Path(prefix).name != prefix:
            raise ValueError(f"keras-par: RankCheckpoint(prefix={prefix!r}) must be a file name without folders.")
        rank = world.current().rank if world.is_started() else 0
        self.folder = Path(directory) / f"rank.{rank}"
        self._prefix, self._every, self._keep = prefix, every, keep
        self._epoch = 0
        self._step = 0
        self._steps_since = 0

    def checkpoints(self) -> list[Path]:
        """This rank's complete checkpoints of this prefix, oldest first."""
        pattern = re.compile(re.escape(self._prefix) + r"-(\d+)_(\d+)" + re.escape(SUFFIX))
        found = [path for path in self.folder.glob(f"*{SUFFIX}") if pattern.fullmatch(path.name)]
        return sorted(found, key=lambda path: (path.stat().st_mtime_ns, path.name))

    def on_train_begin(self, logs=None):
        self.folder.mkdir(parents=True, exist_ok=True)
        for leftover in self.folder.glob(f".{self._prefix}-*.tmp{SUFFIX}"):
            leftover.unlink()

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch = epoch + 1
        self._step = 0

    def on_train_batch_end(self, batch, logs=None):
        self._steps_since += batch + 1 - self._step
        self._step = batch + 1
        if self._every != "epoch" and self._steps_since >= self._every:
            self._steps_since = 0
            self._save()

    def on_epoch_end(self, epoch, logs=None):
        if self._every == "epoch":
            self._save()

    def _save(self) -> None:
        name = f"{self._prefix}-{self._epoch}_{self._step}"
        unfinished = self.folder / f".{name}.tmp{SUFFIX}"
        self.model.save_weights(unfinished, overwrite=True)
        with unfinished.open("rb") as file:
            os.fsync(file.fileno())
        unfinished.replace(self.folder / f"{name}{SUFFIX}")
        if self._keep is not None:
            for old in self.checkpoints()[: -self._keep]:
                old.unlink()
