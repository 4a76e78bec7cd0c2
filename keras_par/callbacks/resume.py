"""Goes on with a run that died, from its newest whole checkpoint."""

from pathlib import Path

from keras_par.callbacks.callback import Callback
from keras_par.checkpoint import callback_states, resume
from keras_par.checkpoint.reader import Reader
from keras_par.comm import world
from keras_par.distribution.runtime import init
from keras_par.job import rank_heartbeat
from keras_par.keras_patches.trainer import epoch_iterator as epochs


class Resume(Callback):
    """Lets `fit` begin where `RankCheckpoint` last wrote a complete checkpoint, or at the start if there is none.

    Example:
        ```python
        with kp.DataParallel().scope():
            model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
            model.compile("adam", "mse")
        x, y = np.ones((100, 8)), np.ones((100, 1))
        resume, checkpoint = kp.callbacks.Resume("ckpt"), kp.callbacks.RankCheckpoint("ckpt")
        model.fit(x, y, batch_size=50, epochs=1, callbacks=[resume, checkpoint])
        resume.resumed_from is None  # -> True
        model.fit(x, y, batch_size=50, epochs=3, callbacks=[resume, checkpoint])  # as when it is started again
        resume.resumed_from  # -> 'CKP-1_2'
        ```

    It restores weights, optimizer, metrics, random seeds, epoch, step, and the position in the data. On as many
    ranks as before the run ends as if it had not died, bit by bit where its sums are; on another number, another mesh
    or with another layout map, to rounding: the checkpoint's folder is all it needs. The script must build model and
    data as before, with the same seeds and the same global batch, and optimizers other than the model's own must be
    built before `fit`; `epochs` counts from the very first start, as with Keras's BackupAndRestore. Callbacks get
    back what they remembered, such as EarlyStopping's patience, once all have begun; see RankCheckpoint. A run that a
    callback had stopped does no further epoch. Checkpoints that are damaged are left out with a warning.

    Args:
        directory: the one that RankCheckpoint was given; all ranks must see the same files.
        prefix: of the checkpoints' names.

    Attributes:
        resumed_from: name of the checkpoint that it has gone on from, None if there was none.

    Raises:
        ValueError: on every rank, if there are checkpoints but none can be read, or it does not fit the model or the
            data.

    Costs eight all-gathers of a few bytes at the begin of training, and two more if an epoch goes on. Every rank reads
    all files for their checksums, then its own part of the variables, one at a time, and reads past the batches that
    were used; see docs/checkpoints.md.
    """

    reads_own_logs = True

    def __init__(self, directory: str | Path, prefix: str = "CKP"):
        super().__init__()
        init()
        self._folder, self._prefix = Path(directory), prefix
        self.acts_on_all_ranks = f"Resume({str(directory)!r}, {prefix!r})"
        self._found: Reader | None = None
        self.resumed_from: str | None = None

    def on_train_begin(self, logs=None):
        communicator = world.current()
        self._found = resume.find(self._folder, self._prefix, communicator)
        if self._found is None:
            return
        resume.restore(self.model, self._found, communicator)
        manifest = self._found.manifest
        self.resumed_from = manifest.name
        epochs.begin_at(self.model, self.params["epochs"] if manifest.stopped else manifest.epoch)
        if communicator.rank == 0:
            text = (
                f"resuming from checkpoint {manifest.name}: {manifest.epoch} epoch(s) and {manifest.step} step(s) are "
                "done" + (", and a callback had stopped the run" if manifest.stopped else "")
            )
            print(f"keras-par: {text}", flush=True)
            rank_heartbeat.current().tell("resume", text=text, name=manifest.name)

    def on_all_begun(self) -> None:
        """Gives the callbacks back what they remembered, after each has begun anew."""
        if self._found is not None:
            callback_states.restore(self._met, self._found, world.current())

    def on_epoch_begin(self, epoch, logs=None):
        if self._found is not None and self._found.manifest.step:
            resume.restore_metrics(self.model, self._found, world.current())
        if self._found is not None:
            epochs.begin_at(self.model, None)
        self._found = None

    def on_train_end(self, logs=None):
        epochs.begin_at(self.model, None)  # if no epoch was left to do
