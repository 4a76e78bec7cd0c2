"""Keras's epoch iterator over this rank's rows, whose epochs end on all ranks at the same step."""

import contextlib
import contextvars
import weakref
from typing import Any

import keras
from keras.src.backend.tensorflow import trainer as keras_trainer
from keras.src.trainers.epoch_iterator import EpochIterator

from keras_par.job import rank_heartbeat
from keras_par.keras_patches.coordination import fit_call as runs
from keras_par.keras_patches.inputs.input import Position, without_distribution
from keras_par.keras_patches.inputs.iterator_disposal import let_go_aside
from keras_par.keras_patches.inputs.kinds import input_of
from keras_par.keras_patches.inputs.shards import Batches, common_type, filled_up, first_row, zeros
from keras_par.keras_patches.trainer.exactness_warnings import say_of_unknown_length

TFEpochIterator: Any = keras_trainer.TFEpochIterator


class ShardedEpochIterator(TFEpochIterator):
    """Reads the input of a bound model's run; without a run it reads what Keras's own does.

    It knows its position in the data, and can begin at one.
    """

    def __init__(self, distribute_strategy=None, *args, **kwargs):
        run = runs.current()
        self._run, self._end = run, "same"
        self._read: list[int] = []  # batches read from each iterator made, with those of the step under way
        self._num_epochs = 0  # complete ones
        self._order: str | None = None  # of what the newest iterator reads, before it was shuffled
        self._skip = 0  # batches the next iterator leaves out
        self.first_step = 0  # at which the next epoch begins: 0 unless it goes on
        self._is_spare = False  # the next iterator will not be read
        _made.get([]).append(weakref.ref(self))
        if run is None:
            with without_distribution():
                super().__init__(distribute_strategy, *args, **kwargs)
            self._input, self._batch_size = input_of(self.data_adapter, kwargs.get("x")), self.data_adapter.batch_size
            return
        with without_distribution():
            EpochIterator.__init__(self, *args, **kwargs)
        auto_shard = getattr(run.binding.strategy, "auto_shard_dataset", True)
        self._input = input_of(self.data_adapter, kwargs.get("x"), auto_shard, run.remainder)
        self._distribute_strategy = distribute_strategy
        opened = run.open(self._input)
        self.data_adapter = self._input.adapter
        self._distributed_dataset, self._end = opened.dataset, opened.end
        self._largest_num_batches = self._num_batches = opened.num_batches
        self._batch_size = None if self._input.is_sharded else self._input.batch_size
        self._stand_in: Any = None
        self._type: Any = None  # of all batches that are read before the steps

    @property
    def element_spec(self):
        """The type of a batch, with or without its row counts."""
        return self._distributed_dataset.element_spec

    def position(self, in_epoch: bool) -> Position:
        """Where the next step reads; `in_epoch` is False between two epochs."""
        goes_on = in_epoch or (self.steps_per_epoch and self._current_iterator is not None)
        earlier = self._read[:-1] if goes_on else self._read
        return Position(
            earlier="".join("1" if count else "0" for count in earlier),
            skip=self._read[-1] if goes_on else 0,
            num_batches=self._num_batches,
            batch_size=self._batch_size,
            num_epochs=self._num_epochs,
            order=self._order if in_epoch or self._is_half_read() else self._input.order_now,
        )

    def _is_half_read(self) -> bool:
        """True if the next epoch goes on with the iterator of the last one."""
        return bool(self.steps_per_epoch and self._current_iterator is not None and self._read and self._read[-1])

    def resume(self, position: Position, step: int) -> None:
        """Lets the next epoch, the first of this iterator, begin at a position that `complaint` has nothing against.

        Args:
            position: in the data.
            step: of the epoch that goes on, from 0.
        """
        self._input.replay(self._distributed_dataset, position)
        self._read = [int(flag) for flag in position.earlier]
        self._num_epochs = position.num_epochs
        self._skip, self.first_step = position.skip, step
        if self._num_batches is None:
            self._num_batches = position.num_batches
        if self.steps_per_epoch:
            self._current_iterator = iter(self._get_iterator())
            if self._num_batches and position.skip >= self._num_batches:
                next(self._current_iterator, None)  # draws the order of which nothing is left, before the next one's
            self._steps_seen = position.skip - step
            self._order = position.order

    def complaint(self, position: Position) -> str | None:
        """One sentence about why this data cannot be gone on with in the middle of a batch sequence, or None."""
        now = {"batches an epoch": self._num_batches, "rows a batch": self._batch_size}
        before = {"batches an epoch": position.num_batches, "rows a batch": position.batch_size}
        for what, number in now.items():
            if position.skip and None not in (number, before[what]) and number != before[what]:
                return (
                    f"the data has {number} {what} now, but had {before[what]} when the checkpoint was written in the "
                    "middle of an epoch: give fit the same data in the same global batches, on any number of ranks."
                )
        if position.skip and self.steps_per_epoch and self._input.reads_ahead:
            return (
                "the data is a PyDataset of which an epoch reads a part (steps_per_epoch), and how far its workers "
                "have read ahead is not known: give it workers=1 to go on in the middle of it."
            )
        return None

    def release(self) -> None:
        """Lets go of the data, after the last epoch."""
        self._epoch_iterator = self._current_iterator = None

    def reset(self):
        super().reset()
        if self._run is not None:
            self._num_batches = self._largest_num_batches

    def _get_iterator(self):
        dataset = self._input.unread if self._is_spare else super()._get_iterator()
        skip, self._skip = self._skip, 0
        self._read.append(skip)
        return let_go_aside(dataset.skip(skip) if skip else dataset)

    def _enumerate_iterator(self):
        """Keras's steps, without those of a resumed epoch that were done before."""
        first_step, self.first_step = self.first_step, 0
        self._is_spare = False
        if not self._is_half_read():
            self._order = self._input.order_now
        num_read = 0
        for begin_step, end_step, iterator in super()._enumerate_iterator():
            if begin_step < first_step:
                continue
            is_first = not any(self._read)
            self._read[-1] += self.steps_per_execution
            num_read = self._read[-1]
            yield begin_step, end_step, iterator
            if is_first:
                self._compare(num_read, is_end=False)
            # After an epoch's last step Keras makes an iterator, and at the next one's begin another. To make one that
            # cuts takes some 20 ms; this one is only needed for the seeds of a shuffle.
            self._is_spare = self._run is not None and self.steps_per_epoch is None
        self._num_epochs += 1
        self._compare(num_read)

    def __next__(self):
        """The next steps. Where the ranks' data may end at different steps, they ask each other first.

        That costs one all-reduce of a scalar for each `steps_per_execution` steps.
        """
        heartbeat = rank_heartbeat.current()
        heartbeat.enter(rank_heartbeat.DATA)
        try:
            return super().__next__() if self._end == "same" else self._next_together()
        finally:
            heartbeat.enter(rank_heartbeat.CALLBACK)

    def _next_together(self):
        begin_step, end_step, iterator = next(self._epoch_iterator)
        batches = []
        for _ in range(self.steps_per_execution):
            try:
                batches.append(next(iterator))
            except StopIteration:
                break
        batches = batches[: self._run.fewest(len(batches))] if self._end == "agree" else self._filled_up(batches)
        if not batches:
            if self.steps_per_epoch:
                self._interrupted_warning()
            elif self.steps_per_execution == 1 and self._run.kind == "fit":
                say_of_unknown_length(self._run.binding, self._run.model)
            self._current_iterator = None
            self.data_adapter.on_epoch_end()
            self._num_epochs += 1
            self._compare(self._read[-1])
            raise StopIteration
        self._type = self._type or common_type(self.element_spec, batches[0])
        return begin_step, end_step, Batches(batches, self._type)

    def _filled_up(self, batches: list) -> list:
        """This rank's batches, as many as the rank that has most, with the first row of its newest one to stand in."""
        if self._num_batches is None:
            count = self._run.most(len(batches))
        else:
            count = min(self.steps_per_execution, self._num_batches - self._steps_seen + self.steps_per_execution)
        if batches:
            self._stand_in = first_row(batches[-1])
        elif count and self._stand_in is None:
            self._stand_in = zeros(self.element_spec)
        return filled_up(batches, count - len(batches), self._stand_in)

    def _compare(self, num_read: int, is_end: bool = True) -> None:
        if self._run is not None and num_read:
            self._run.same_so_far(self._input, num_read, is_end)


_made: contextvars.ContextVar[list[weakref.ref]] = contextvars.ContextVar("keras_par_epochs")


def newest() -> ShardedEpochIterator | None:
    """The iterator that the call of `fit`, `evaluate` or `predict` under way made last, None if there is none."""
    made = _made.get([])
    return made[-1]() if made else None


@contextlib.contextmanager
def released_after():
    """Around a call of `fit`, `evaluate` or `predict`: lets go of the iterators it made when it ends.

    A generator that was not read to its end keeps its iterator, and what this has read ahead, until garbage is
    collected, maybe minutes later.
    """
    token = _made.set([])
    try:
        yield
    finally:
        for iterator in filter(None, (reference() for reference in _made.get())):
            iterator.release()
        _made.reset(token)


def begin_at(model: keras.Model, epoch: int | None) -> None:
    """Lets the `fit` that calls `on_train_begin` begin with this epoch, from 0; None forgets it for the next one."""
    model._initial_epoch = epoch
