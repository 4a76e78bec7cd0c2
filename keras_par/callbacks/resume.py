"""Goes on with a run that died, from its newest whole checkpoint."""

from pathlib import Path

import keras

from keras_par.checkpoint import resume
from keras_par.comm import world
from keras_par.distribution.runtime import init


class Resume(keras.callbacks.Callback):
    """Lets `fit` begin where `RankCheckpoint` last wrote a complete checkpoint, or at the start if there is none.

    ```python
    model.fit(train, epochs=90, callbacks=[kp.callbacks.Resume("ckpt"), kp.callbacks.RankCheckpoint("ckpt")])
    ```

    It restores weights, optimizer, metrics, random seeds, epoch, step, and the position in the data. On as many
    ranks as before the run ends as if it had not died, bit by bit where its sums are; on another number, to
    rounding. The script must build model and data as before, with the same seeds; `epochs` counts from the very
    first start, as with Keras's BackupAndRestore. Checkpoints that are damaged are left out with a warning.

    Args:
        directory: the one that RankCheckpoint was given; all ranks must see the same files.
        prefix: of the checkpoints' names.

    Raises:
        ValueError: on every rank, if there are checkpoints but none can be read, or it does not fit the model.

    Costs eight all-gathers of a few bytes at the begin of training.
    """

    reads_own_logs = True

    def __init__(self, directory: str | Path, prefix: str = "CKP"):
        super().__init__()
        init()
        self._folder, self._prefix = Path(directory), prefix
        self.acts_on_all_ranks = f"Resume({str(directory)!r}, {prefix!r})"
        self._found: resume.Found | None = None
        self.resumed_from: str | None = None

    def on_train_begin(self, logs=None):
        communicator = world.current()
        self._found = resume.find(self._folder, self._prefix, communicator)
        if self._found is None:
            return
        resume.restore(self.model, self._found, communicator)
        manifest = self._found[0]
        self.resumed_from = manifest.name
        self.model._initial_epoch = manifest.epoch
        if communicator.rank == 0:
            print(
                f"keras-par: resuming from checkpoint {manifest.name}: {manifest.epoch} epoch(s) and {manifest.step} "
                "step(s) are done",
                flush=True,
            )

    def on_epoch_begin(self, epoch, logs=None):
        if self._found is not None and self._found[0].step:
            resume.restore_metrics(self.model, self._found, world.current())
        self._found = None

    def on_train_end(self, logs=None):
        self.model._initial_epoch = None
