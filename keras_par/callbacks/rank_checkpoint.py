"""Writes checkpoints of the whole job, so that a kill at any moment leaves only complete ones."""

import math
import re
import time
import warnings
from pathlib import Path
from typing import Literal

import keras
import tensorflow as tf

from keras_par.base.regular_file import require_folder
from keras_par.base.version import VERSION
from keras_par.callbacks.callback import Callback
from keras_par.checkpoint import callback_states, snapshot
from keras_par.checkpoint import folder as folders
from keras_par.checkpoint import memory as memories
from keras_par.checkpoint.disk import Disk
from keras_par.checkpoint.manifest import CheckpointError, File, Manifest
from keras_par.checkpoint.memory import Memory
from keras_par.checkpoint.writer import Writer
from keras_par.comm import world
from keras_par.comm.communicator import Communicator, gather_or_raise
from keras_par.distribution.runtime import init
from keras_par.keras_patches.inputs.arrays import global_seed
from keras_par.keras_patches.trainer import epoch_iterator as epochs


class RankCheckpoint(Callback):
    """Saves all that training changes as `<directory>/rank.<r>/<prefix>-<epoch>_<step>.safetensors`, with a manifest.

    Example:
        ```python
        with kp.DataParallel().scope():
            model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
            model.compile("adam", "mse")
        checkpoint = kp.callbacks.RankCheckpoint("ckpt")
        model.fit(np.ones((100, 8)), np.ones((100, 1)), batch_size=20, epochs=2, callbacks=[checkpoint])
        [path.name for path in checkpoint.checkpoints()]  # -> ['CKP-1_5.json', 'CKP-2_5.json']
        ```

    `kp.callbacks.Resume` goes on from it, on any number of ranks; `kp.load_checkpoint` reads it into a model. Rank 0's
    file holds what all ranks share; the others' hold what is their own: partial metrics, accumulated gradients,
    seeds, moving statistics, and in model parallel their shards, of which each is written once. What EarlyStopping,
    ReduceLROnPlateau, ModelCheckpoint, SwapEMAWeights and TensorBoard remember is in them, and what callbacks with
    methods `get_state()` and `set_state(state)` return; this callback acts after all of these. The manifest
    `<directory>/<prefix>-<epoch>_<step>.json` comes last, with a checksum of each file; what has none is no
    checkpoint. Epochs and steps count from 1.

    Weights that are not trained, such as a base under adapters, are in a file of their own, which later checkpoints
    name, too.

    Training waits while the state is copied; a thread writes the copy. A checkpoint that becomes due in the middle of
    an epoch while another is still being written is left out.

    With `memory_every` the job also keeps its newest state in the memory of its hosts, each rank's on two of them.
    When `keras-par run --max-restarts` starts the job again, `Resume` writes that state to `directory` and goes on
    from there, if it is newer than what is on the disk.

    Args:
        directory: folder of the whole job's checkpoints, which all ranks see.
        prefix: how the names of the files begin.
        every: "epoch", or a number of training steps.
        every_seconds: seconds after which one is due besides.
        keep: how many of the newest stay, None for all.
        save_best_only: True saves only at the end of epochs in which `monitor` is better than in all before.
        monitor: name of a metric in the logs of an epoch, which are equal on all ranks.
        mode: "min" or "max"; "auto" knows losses and errors, accuracies and scores by their names.
        asynchronous: False lets training wait until each file is on the disk.
        memory_every: training steps from one checkpoint in the memory of two hosts to the next, None for none.

    Raises:
        ValueError: an argument has no such value; on every rank, if a rank cannot write, or `monitor` is not in the
            logs.

    Costs six all-gathers of a few bytes for each checkpoint, two at the begin of training, and one all-reduce of a
    scalar at the end of an epoch, for each checkpoint, and at each step while one is being written; with
    `every_seconds` a broadcast of a number about twice as often as one is due, and more often as the moment comes near.
    One in memory costs the same, two more all-gathers of a few bytes, and on several hosts all-gathers of the ranks'
    files, each over two or three ranks. The first needs one all-gather of the hosts' names, and some for groups of
    ranks.
    """

    reads_own_logs = True
    comes_after_memories = True

    def __init__(
        self,
        directory: str | Path,
        prefix: str = "CKP",
        every: int | Literal["epoch"] = "epoch",
        keep: int | None = 5,
        *,
        every_seconds: float | None = None,
        save_best_only: bool = False,
        monitor: str = "val_loss",
        mode: Literal["auto", "min", "max"] = "auto",
        asynchronous: bool = True,
        memory_every: int | None = None,
    ):
        super().__init__()
        if every != "epoch" and (not isinstance(every, int) or every < 1):
            raise ValueError(f"keras-par: RankCheckpoint(every={every!r}) must be 'epoch' or a number of steps.")
        if every_seconds is not None and every_seconds <= 0:
            raise ValueError(f"keras-par: RankCheckpoint(every_seconds={every_seconds}) must be more than 0.")
        if keep is not None and keep < 1:
            raise ValueError(f"keras-par: RankCheckpoint(keep={keep}) must be at least 1, or None to keep all.")
        if not prefix or Path(prefix).name != prefix:
            raise ValueError(f"keras-par: RankCheckpoint(prefix={prefix!r}) must be a file name without folders.")
        if memory_every is not None and memory_every < 1:
            raise ValueError(f"keras-par: RankCheckpoint(memory_every={memory_every}) must be a number of steps.")
        if save_best_only and (every != "epoch" or every_seconds is not None or memory_every is not None):
            raise ValueError(
                "keras-par: RankCheckpoint(save_best_only=True) compares whole epochs: leave out every, "
                "every_seconds and memory_every."
            )
        init()
        self._communicator = world.current()
        self._directory, self._prefix = Path(directory), prefix
        self._every = every
        self._best = Best(monitor, mode) if save_best_only else None
        self._due = Due(None if every == "epoch" else every, every_seconds, self._communicator)
        self._disk = Disk(self._directory, prefix, keep, self._communicator.rank)
        self._writer = Writer(self._disk, self._directory, asynchronous, self._communicator)
        self._due_in_memory = Due(memory_every, None, self._communicator)
        self._memory: Writer | None = None
        self._serial = 0
        self._epoch = self._step = 0
        self._saved: tuple[int, int] | None = None  # epochs and steps that were done at the newest
        options = f"every={every!r}, every_seconds={every_seconds}, memory_every={memory_every}"
        self.acts_on_all_ranks = f"RankCheckpoint(prefix={prefix!r}, {options})"
        self._memory_folder = None if memory_every is None else memories.folder_for(self._directory, prefix)
        if memory_every is not None and self._memory_folder is None:
            warnings.warn(
                f"keras-par: RankCheckpoint(memory_every={memory_every}) keeps nothing in memory, because nobody would "
                "start this job again: start it by 'keras-par run --max-restarts'.",
                stacklevel=2,
            )

    @property
    def folder(self) -> Path:
        """The folder of this rank's files."""
        return folders.rank_folder(self._directory, self._communicator.rank)

    def checkpoints(self) -> list[Path]:
        """The manifests of the complete checkpoints, oldest first."""
        return [self._directory / f"{found.name}.json" for found in folders.complete(self._directory, self._prefix)]

    def on_train_begin(self, logs=None):
        self._writer.finish()  # what a fit that failed had begun
        if self._memory is not None:
            self._memory.give_up()

    def on_all_begun(self) -> None:
        """Looks at the folder, in which Resume may have written what was in memory."""
        found = look_together(self._directory, self._prefix, self._disk, self._communicator)
        is_first = self._communicator.rank == 0
        others = folders.ranks_without_process(self._directory, self._communicator.size) if is_first else []
        for rank in (self._communicator.rank, *others):
            folders.remove_leftovers(self._directory, self._prefix, rank, found["names"], found["frozen"])
        if (frozen := found["newest_frozen"].get(str(self._communicator.rank))) is not None:
            self._writer.frozen.offer(self._directory / frozen["path"], File(**frozen))
        self._iterator = epochs.newest()
        self._serial = max(self._serial, found["serial"])
        if self._memory is None and self._memory_folder is not None:
            memory = Memory(self._memory_folder, self._communicator)
            self._memory = Writer(memory, self._directory, True, self._communicator)
        if self._best is not None:
            self._best.remember(found["monitored"])
        self._restart()

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch, self._step = epoch, 0 if self._iterator is None else self._iterator.first_step

    def on_train_batch_end(self, batch, logs=None):
        # With steps_per_execution Keras may count beyond the last step.
        done = min(batch + 1, self.params.get("steps") or batch + 1)
        num_steps, self._step = done - self._step, done
        for each in filter(None, (self._writer, self._memory)):
            each.complete_if_written()
        is_due, memory = self._due.after(num_steps), self._memory
        is_due_in_memory = memory is not None and self._due_in_memory.after(num_steps) and not memory.is_writing
        # A last step, and a stop, are followed by the epoch's end.
        if not (is_due or is_due_in_memory) or self._is_last_step() or self._is_stopped():
            return
        if is_due:
            self._due.restart()
        writer = self._writer if is_due and not self._writer.is_writing else memory if is_due_in_memory else None
        if writer is not None:
            self._save(writer, self._epoch, self._step)
            self._due_in_memory.restart()  # after one on the disk it would only repeat that

    def on_epoch_end(self, epoch, logs=None):
        stopped = self._is_stopped()
        if self._best is not None:
            is_due = self._best.is_new(logs)
        else:
            is_due = self._every == "epoch" or ((stopped or self._is_last_step()) and self._due.after(0))
        if is_due:
            self._writer.finish()
            self._save(self._writer, epoch + 1, 0, stopped)
            self._restart()

    def on_train_end(self, logs=None):
        self._writer.finish()

    def on_fit_exit(self) -> None:
        """Lets other jobs write to the folder."""
        self._disk.close()

    def on_interrupt(self, epoch_is_complete: bool) -> None:
        """Writes a last checkpoint where the user ends the job, unless only the best are wanted."""
        self._writer.finish()
        if self._best is None:
            epoch, step = (self._epoch + 1, 0) if epoch_is_complete else (self._epoch, self._step)
            if (epoch, step) != self._saved:
                self._save(self._writer, epoch, step, self._is_stopped())
            self._writer.finish()

    def _restart(self) -> None:
        """Counts anew."""
        self._due.restart()
        self._due_in_memory.restart()

    def _is_stopped(self) -> bool:
        """True if a callback on some rank has ended the training. Costs one all-reduce of a scalar."""
        return not self._communicator.all_agree(not self.model.stop_training, "kp.checkpoint.stop")

    def _is_last_step(self) -> bool:
        """True where an epoch's end follows, after which a checkpoint needs no metrics."""
        num_steps = self.params.get("steps")
        return num_steps is not None and self._step >= num_steps

    def _save(self, writer: Writer, epoch: int, step: int, stopped: bool = False) -> None:
        """Begins to write a checkpoint; `epoch` epochs are complete, and `step` steps of the next one."""
        self._serial += 1
        if writer is self._writer:
            self._saved = (epoch, step)
        position = None if self._iterator is None else list(self._iterator.position(in_epoch=step > 0))
        grid = snapshot.grid_of(self.model, self._communicator.size)
        manifest = Manifest(
            name=f"{self._prefix}-{self._epoch + 1}_{self._step}",
            serial=self._serial,
            mesh=grid,
            epoch=epoch,
            step=step,
            position=position,
            seed=global_seed(),
            stopped=stopped,
            monitored=None if self._best is None else [self._best.monitor, self._best.value],
            variables=snapshot.variables_of(self.model),
            versions={"keras-par": VERSION, "keras": keras.__version__, "tensorflow": tf.__version__},
            files=[],
        )
        states, complaint = callback_states.take(self._met)
        arrays = snapshot.take(self.model, grid, self._communicator.rank) | states
        frozen = snapshot.frozen(self.model) if writer is self._writer else ()  # in memory each is whole
        writer.begin(manifest, arrays, complaint, frozen)


def look_together(folder: Path, prefix: str, disk: Disk, communicator: Communicator) -> dict:
    """What rank 0 finds in the folder, which it keeps for this job; each rank makes its own folder in it.

    Costs two all-gathers of a few bytes.

    Raises:
        ValueError: on every rank, if a rank cannot make its folder, or another job writes there.
    """
    found, complaint = None, None
    own = folders.rank_folder(folder, communicator.rank)
    try:
        own.mkdir(parents=True, exist_ok=True)
        require_folder(own)
        complaint = disk.open()
        if communicator.rank == 0 and complaint is None:
            unfit: list[CheckpointError] = []
            complete = folders.complete(folder, prefix, unfit)
            newest = complete[-1].frozen if complete else []
            found = {
                "names": [path.stem for path in folder.glob("*.json")],
                "frozen": None if unfit else sorted(folders.frozen_files(complete)),
                "newest_frozen": {str(rank): vars(file) for rank, file in enumerate(newest) if file},
                "serial": max((manifest.serial for manifest in complete), default=0),
                "monitored": [manifest.monitored for manifest in complete],
            }
    except OSError as error:
        complaint = (
            f"checkpoints cannot be written to '{own}' ({error.strerror}): give a folder that ranks can write to."
        )
    return gather_or_raise(communicator, "kp.checkpoint.look", found, complaint)[0]


class Best:
    """The best value of a metric so far.

    Args:
        monitor: name of the metric in the logs.
        mode: "min", "max", or "auto" to know it by the name.

    Raises:
        ValueError: `mode` is unknown, or "auto" does not know the name.
    """

    LARGER = re.compile(r"acc|auc|precision|recall|score|iou|f\d|r2|similarity")
    SMALLER = re.compile(r"loss|error|mse|mae|entropy|divergence|perplexity|hinge")

    def __init__(self, monitor: str, mode: str):
        is_larger, is_smaller = (bool(names.search(monitor)) for names in (self.LARGER, self.SMALLER))
        if mode not in ("auto", "min", "max"):
            raise ValueError(f"keras-par: RankCheckpoint(mode={mode!r}) is unknown, use 'auto', 'min' or 'max'.")
        if mode == "auto" and is_larger == is_smaller:
            raise ValueError(
                f"keras-par: RankCheckpoint(monitor={monitor!r}) does not tell whether less is better: "
                "say mode='min' or mode='max'."
            )
        self.monitor, self.value = monitor, math.nan  # than which all is better
        self._sign = 1 if mode == "max" or (mode == "auto" and is_larger) else -1

    def remember(self, monitored: list[list | None]) -> None:
        """Takes into account what checkpoints of an earlier run say."""
        for value in (value for name, value in filter(None, monitored) if name == self.monitor):
            self.is_new({self.monitor: value})

    def is_new(self, logs: dict | None) -> bool:
        """True if the logs' value is better than all before; never for NaN, or for an epoch without validation."""
        if logs and self.monitor.startswith("val_") and not any(name.startswith("val_") for name in logs):
            return False
        if not logs or self.monitor not in logs:
            raise ValueError(
                f"keras-par: RankCheckpoint(monitor={self.monitor!r}) found only {sorted(logs or {})} in the logs: "
                "name one of these."
            )
        value = float(logs[self.monitor])
        better = value == value and not self._sign * value <= self._sign * self.value
        if better:
            self.value = value
        return better


class Due:
    """Counts steps, and asks rank 0's clock about as often as needed.

    Args:
        every_steps: steps from one checkpoint to the next, None if steps do not matter.
        every_seconds: seconds from one to the next, None if the clock does not matter. Then rank 0 tells the others
            how many steps to do before they ask again, which costs one broadcast of a number each time: about
            twice as often as checkpoints are due, and more often as the moment comes near.
        communicator: the job's.
    """

    def __init__(self, every_steps: int | None, every_seconds: float | None, communicator: Communicator):
        self._every_steps, self._every_seconds = every_steps, every_seconds
        self._communicator = communicator
        self.restart()

    def restart(self) -> None:
        """Begins to count anew, when a checkpoint was written."""
        self._steps = 0
        self._ask_at = 1
        self._began = time.monotonic()

    def after(self, num_steps: int) -> bool:
        """True if a checkpoint is due now that `num_steps` more were done."""
        self._steps += num_steps
        if self._every_steps is not None and self._steps >= self._every_steps:
            return True
        if self._every_seconds is None or self._steps < self._ask_at:
            return False
        passed = time.monotonic() - self._began
        wait = round((self._every_seconds - passed) / (passed / self._steps) / 2) if passed < self._every_seconds else 0
        [told] = self._communicator.broadcast([tf.constant(max(wait, int(passed < self._every_seconds)))], "kp.due")
        self._ask_at = self._steps + int(told)
        return int(told) == 0
