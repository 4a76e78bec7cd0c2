"""Keras's epoch iterator over this rank's rows, whose epochs end on all ranks at the same step."""

import contextlib
from typing import Any

from keras.src.backend.tensorflow import trainer as keras_trainer
from keras.src.distribution import distribution_lib
from keras.src.trainers.epoch_iterator import EpochIterator

from keras_par.seam import run as runs
from keras_par.seam.input import Source

TFEpochIterator: Any = keras_trainer.TFEpochIterator


class ShardedEpochIterator(TFEpochIterator):
    """Reads the input of a bound model's run; without a run it is Keras's own iterator."""

    def __init__(self, distribute_strategy=None, *args, **kwargs):
        run = runs.current()
        self._run = run
        self._agree = False
        if run is None:
            with without_distribution():
                super().__init__(distribute_strategy, *args, **kwargs)
            return
        with without_distribution():
            EpochIterator.__init__(self, *args, **kwargs)
        auto_shard = getattr(run.binding.strategy, "auto_shard_dataset", True)
        source = Source(self.data_adapter, auto_shard)
        self._distribute_strategy = distribute_strategy
        self._distributed_dataset, self._agree = run.open(source)

    def __next__(self):
        """The next steps; where the length of the data is unknown, the ranks agree each time that all have more.

        That costs one all-reduce of a scalar for each `steps_per_execution` steps.
        """
        if not self._agree:
            return super().__next__()
        begin_step, end_step, iterator = next(self._epoch_iterator)
        batches = []
        for _ in range(self.steps_per_execution):
            try:
                batches.append(next(iterator))
            except StopIteration:
                break
        count = self._run.fewest(len(batches))
        if count == 0:
            if self.steps_per_epoch:
                self._interrupted_warning()
            self._current_iterator = None
            self.data_adapter.on_epoch_end()
            raise StopIteration
        return begin_step, end_step, iter(batches[:count])


@contextlib.contextmanager
def without_distribution():
    """Hides the strategy from Keras's data adapters, which would refuse arrays or cut datasets their own way."""
    strategy = distribution_lib.distribution()
    distribution_lib.set_distribution(None)
    try:
        yield
    finally:
        distribution_lib.set_distribution(strategy)


def install() -> None:
    """Puts the iterator where `fit`, `evaluate` and `predict` look for Keras's."""
    keras_trainer.TFEpochIterator = ShardedEpochIterator
