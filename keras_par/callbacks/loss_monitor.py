"""Prints the loss of training steps over all ranks, and stops a run whose loss is no number any more."""

import math

import tensorflow as tf

from keras_par.callbacks.callback import Callback
from keras_par.comm import world
from keras_par.comm.agreed import AgreedRuntimeError
from keras_par.comm.communicator import Communicator, SoloCommunicator
from keras_par.keras_patches.coordination import fit_call as runs
from keras_par.keras_patches.step.metrics import combined, track_newest_loss


class LossMonitor(Callback):
    """Prints `epoch: 3 step: 2, loss is 0.367389976978302` on rank 0 and stops at a NaN or infinite loss.

    Example:
        ```python
        with kp.DataParallel().scope():
            model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1, kernel_initializer="zeros")])
            model.compile("sgd", "mse")
        x, y = np.ones((64, 8)), np.ones((64, 1))
        history = model.fit(x, y, batch_size=64, verbose=0, callbacks=[kp.callbacks.LossMonitor()])
        history.history["loss"]  # -> [1.0]
        ```

    The loss is that step's own, over the rows of all ranks; a progress bar shows the mean over the epoch so far.
    Of a model whose `train_step` is the user's own it is "loss" in the logs, of all ranks' rows. Epochs and steps
    count from 1.

    Args:
        every: number of steps from one line, and one check, to the next.

    Raises:
        ValueError: `every` is not at least 1; in training, there is no loss in the logs.
        RuntimeError: on every rank, at the step whose loss is NaN or infinite.

    Costs one all-reduce of two numbers at each step it prints; for a `train_step` of the user's own those of metrics.
    """

    reads_own_logs = True

    def __init__(self, every: int = 1):
        super().__init__()
        if every < 1:
            raise ValueError(f"keras-par: LossMonitor(every={every}) must be at least 1 step.")
        self._every = every
        self.acts_on_all_ranks = f"LossMonitor(every={every})"
        self._epoch = 0
        self._step = 0

    def set_model(self, model):
        """Is told the model whose losses it prints."""
        super().set_model(model)
        self._tracker = track_newest_loss(model)

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch = epoch + 1
        self._step = 0
        self._tracker.newest.assign([0.0, 0.0])  # stays so if the model's own train_step does not use the tracker

    def on_train_batch_end(self, batch, logs=None):
        before, self._step = self._step, batch + 1
        if self._step // self._every == before // self._every:
            return
        communicator: Communicator = world.current() if world.is_started() else SoloCommunicator()
        loss = self._loss(communicator, logs)
        line = f"epoch: {self._epoch} step: {self._step}, loss is {loss}"
        if communicator.rank == 0:
            print(line, flush=True)
        if not math.isfinite(loss):
            raise AgreedRuntimeError(
                f"keras-par: training stopped because the loss is not a finite number ({line}): lower the learning "
                "rate, clip gradients, or look at the data of this step."
            )

    def _loss(self, communicator: Communicator, logs) -> float:
        [total] = communicator.all_reduce([tf.convert_to_tensor(self._tracker.newest)], "kp.newest_loss")
        weighted, weight = total.numpy().tolist()
        if weight:
            return weighted / weight
        if not logs or "loss" not in logs:
            raise ValueError("keras-par: LossMonitor found no 'loss' in the logs: return it from train_step.")
        run = runs.current()
        if run is None:
            logs = combined(communicator, {"loss": logs["loss"]}, {}, {}, lambda place: 1 / communicator.size)
        else:
            logs = run.everywhere(logs)
        return float(logs["loss"])
