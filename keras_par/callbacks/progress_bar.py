"""One progress bar for the whole job, which also says what the ranks' time goes into."""

import time

import numpy as np
import tensorflow as tf

from keras_par.callbacks.callback import Callback
from keras_par.callbacks.progress_view import NO_STEPS, Span, View, terminal_width
from keras_par.job import rank_heartbeat
from keras_par.keras_patches.coordination import fit_call as runs
from keras_par.keras_patches.trainer.step_timing import measure

BAR_SECONDS, LINES_SECONDS = 1.0, 30.0


class ProgressBar(Callback):
    """Shows how far training is, on rank 0, with figures of all ranks; give `fit` verbose=0 beside it.

    Example:
        ```python
        with kp.DataParallel().scope():
            model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
            model.compile("adam", "mse")
        model.fit(np.ones((100, 8)), np.ones((100, 1)), verbose=0, callbacks=[kp.callbacks.ProgressBar()])
        int(model.optimizer.iterations)  # -> 4
        ```

    Where its output goes to no terminal, it prints such lines:

    ```
    epoch 2/10 step 120/468: loss 0.3674, accuracy 0.8910, 5321 rows/s, 23% in collectives,
    slowest rank 1: 11.2 ms a step, rank 0: 8.1 ms
    ```

    Loss and metrics are those of the epoch so far, over the rows of all ranks. Rows are the whole job's, also of
    ragged batches. A step's time is what a rank needs for it outside of collectives: its input, its computation and
    its callbacks. Ranks wait for the slowest one inside collectives, so the rest of their time, "in collectives", is
    this waiting and the transfer; it is the mean over ranks, and can be hidden behind computation where gradients
    are reduced in several buckets. The first step, which is traced, counts in no figure but loss and metrics. A line
    at the end of each epoch has the figures of all of it. Without a strategy they are those of this process.

    Args:
        every_seconds: time from one exchange of figures to the next; None is 1 s for a bar, 30 s for lines.
        bar: True draws a bar, False prints a line at each exchange; None draws a bar where rank 0's output, or that
            of the mpirun that started it, goes to a terminal.

    Raises:
        ValueError: `every_seconds` is negative; on every rank, the ranks do not all have it.

    Costs, about each `every_seconds` and at the end of an epoch, one all-gather of three numbers and one all-reduce
    for each dtype of the metrics' state, and at each collective of a step two readings of the clock, tens of
    microseconds. The first `fit` with it traces the model's training step anew.
    """

    reads_own_logs = True
    acts_on_all_ranks = "ProgressBar"

    def __init__(self, every_seconds: float | None = None, bar: bool | None = None):
        super().__init__()
        if every_seconds is not None and every_seconds < 0:
            raise ValueError(f"keras-par: ProgressBar(every_seconds={every_seconds}) must not be negative.")
        self._every_seconds, self._bar = every_seconds, bar

    def on_train_begin(self, logs=None):
        self._run = runs.current(self.model)
        self._rows = measure(self.model)
        width = terminal_width()
        bar = width is not None if self._bar is None else self._bar
        every = self._every_seconds
        self._seconds = (BAR_SECONDS if bar else LINES_SECONDS) if every is None else every
        self._num_steps = self.params.get("steps")
        self._view = None
        if self._run is None or self._run.communicator.rank == 0:
            self._view = View(bar, width, self._seconds, self.params.get("epochs"), self._num_steps)
        self._is_first = True  # nothing was exchanged yet
        self._interval = 1  # steps from the last exchange to the next

    def on_epoch_begin(self, epoch, logs=None):
        self._step = 0
        self._whole = self._newest = NO_STEPS
        self._mark()
        self._exchanged = self._now
        self._epoch_rows = self._exchanged_rows = int(self._rows)
        if self._view:
            self._view.begin(epoch)

    def on_train_batch_end(self, batch, logs=None):
        # Where `steps_per_execution` does not divide an epoch, Keras counts beyond its end.
        self._step = min(batch + 1, self._num_steps or batch + 1)
        self._mark()
        if self._step - self._exchanged[0] >= self._interval:
            self._exchange()
            logs = logs if self._run is None else self._run.everywhere(logs)
            if self._view:
                self._view.show(self._step, logs, self._newest)
        elif self._view:
            self._view.advance(self._step)

    def on_epoch_end(self, epoch, logs=None):
        if self._step > self._exchanged[0]:
            self._exchange()
        if self._view:
            self._view.end(self._step, logs or {}, self._exchanged_rows - self._epoch_rows, self._whole)

    def on_train_end(self, logs=None):
        if self._view:
            self._view.close()

    def _mark(self) -> None:
        """Notes where this rank is: the step, the time, and how much of it went into collectives."""
        self._now = np.array([self._step, time.perf_counter(), rank_heartbeat.current().collective_seconds])

    def _exchange(self) -> None:
        """Gathers the ranks' times since the last exchange, and rank 0's wish when the next shall be."""
        (steps, seconds, collective), rows = self._now - self._exchanged, int(self._rows)
        wish = max(1.0, min(self._seconds * steps / max(seconds, 1e-9), 2.0 * self._interval))
        own = tf.constant([[seconds, collective, wish]], tf.float64)
        everyone = own if self._run is None else self._run.communicator.all_gather(own, "kp.progress")
        times, collective_times, wishes = everyone.numpy().T
        self._interval = int(wishes[0])
        if not self._is_first:
            self._newest = Span(int(steps), rows - self._exchanged_rows, times, collective_times)
            self._whole += self._newest
        self._is_first, self._exchanged, self._exchanged_rows = False, self._now, rows
