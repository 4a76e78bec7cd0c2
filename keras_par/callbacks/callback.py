"""What a callback may tell of itself where there are several ranks, and what it may be told."""

import keras


class Callback(keras.callbacks.Callback):
    """A Keras callback that knows of ranks; the base class of this package's, and of your own if you like.

    Example:
        ```python
        class SlowestEpoch(kp.callbacks.Callback):
            acts_on_all_ranks = "SlowestEpoch"  # it asks the other ranks, so each must have it

            def on_epoch_begin(self, epoch, logs=None):
                self.began = tf.timestamp()

            def on_epoch_end(self, epoch, logs=None):
                self.seconds = float(kp.ops.all_reduce(tf.timestamp() - self.began, "max"))

        with kp.DataParallel().scope():
            model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
            model.compile("adam", "mse")
        slowest = SlowestEpoch()
        model.fit(np.ones((100, 8)), np.ones((100, 1)), callbacks=[slowest])
        slowest.seconds > 0  # -> True
        ```

    Other callbacks may have these attributes and methods, too; only the names count.

    Attributes:
        acts_on_all_ranks: what the callback is called, if every rank must have it, because it talks to the others;
            `fit` refuses a job whose ranks have other names here. None if ranks may differ.
        reads_own_logs: True if logs of this rank's rows will do in `on_train_batch_end`; else those of all ranks are
            summed after each step.
        every_rank_writes: True if each rank writes files of its own, where otherwise one writes for all.
        comes_after_memories: True if it is to be called after all callbacks that remember something.

    Costs no collective by itself. A callback that has methods for single steps and does not say `reads_own_logs` costs
    one all-reduce for each dtype of the metrics' state and one of a scalar at each step.
    """

    acts_on_all_ranks: str | None = None
    reads_own_logs: bool = False
    every_rank_writes: bool = False
    comes_after_memories: bool = False

    def meet(self, callbacks: list[keras.callbacks.Callback]) -> None:
        """Is told all callbacks of the `fit` that begins, before any of them begins."""
        self._met = callbacks

    def on_all_begun(self) -> None:
        """Called once `on_train_begin` of all callbacks has been."""

    def on_fit_exit(self) -> None:
        """Called when `fit` is left, also by an error; must not talk to the other ranks."""

    def on_interrupt(self, epoch_is_complete: bool) -> None:
        """Called on every rank, after the same step, when the user ends the job; may talk to the other ranks."""
