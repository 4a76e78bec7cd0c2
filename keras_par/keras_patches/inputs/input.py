"""What `fit` is given, as all ranks read it: the base of the kinds of input, which says what differs between them."""

import contextlib
import types
from typing import Any, NamedTuple

import tensorflow as tf
from keras.src.distribution import distribution_lib
from keras.src.trainers.data_adapters.generator_data_adapter import GeneratorDataAdapter

from keras_par.comm.communicator import Communicator
from keras_par.keras_patches.inputs.components import History, counting_component, num_rows
from keras_par.keras_patches.inputs.iterator_disposal import let_go_aside
from keras_par.keras_patches.inputs.own_shares import Sharding, is_marked, mark
from keras_par.keras_patches.inputs.same_data import Digest
from keras_par.keras_patches.inputs.shards import OwnBatch, as_it_is, cut
from keras_par.plan.options import Remainder


class Position(NamedTuple):
    """Where an epoch iterator is: counted, not stored, so that any number of ranks can go on from it.

    Args:
        earlier: one character for each iterator made before the one that goes on: "1" if it was read, else "0".
        skip: batches of the one that goes on which have been read.
        num_batches: batches of an epoch if this is known by now.
        batch_size: rows of a global batch if this is known.
        num_epochs: complete epochs before it.
        order: the input's `order_now` from which the epoch that goes on was or will be shuffled.
    """

    earlier: str
    skip: int
    num_batches: int | None
    batch_size: int | None
    num_epochs: int
    order: str | None


class Input:
    """Batches of a data adapter of Keras's, of which each rank keeps its rows.

    A kind of input is a subclass that overrides what is other for it, and a row of `kinds.py: KINDS`.

    Args:
        adapter: made by Keras from the arguments of `fit`, without a distribution.
        given: the `x` of `fit`.
        auto_shard: False if the user says that the input is this rank's share already.
        remainder: what happens to rows of a global batch that the number of ranks does not divide.
    """

    adapter_type: type = object  # of Keras's data adapters: any
    advice = "let it give the same rows in the same order on every rank"  # how to, where ranks read other rows
    is_infinite = False
    order: Any = None  # what decides the order of batches in this process's Python, to be rank 0's everywhere
    order_now: str | None = None  # as JSON, what a `Position` keeps of it
    generators: str | None = None  # a digest of the states of generators that are to stand as rank 0's
    num_to_replay: int | None = 0  # batches of an iterator to be read so that the next one's order is right; None: all
    reads_ahead = False  # True if it is not known how far workers have read when an epoch reads only a part
    unread: tf.data.Dataset  # making an iterator of it, which is not read, moves the same seeds on as one of `dataset`
    digest: Digest | None = None

    def __init__(self, adapter: Any, given: Any, auto_shard: bool = True, remainder: Remainder = "exact"):
        self.adapter, self.remainder = adapter, remainder
        self.is_dealt = is_marked(given)
        self.is_sharded = not auto_shard or self.is_dealt
        self.kind = type(adapter).__name__.removesuffix("Adapter")
        # With "drop" a last batch of fewer rows than ranks is no batch.
        self.num_batches: int | None = adapter.num_batches if remainder != "drop" or self.is_sharded else None

    @classmethod
    def reads(cls, adapter: Any) -> bool:
        """True if this kind is what an adapter of Keras's reads."""
        return isinstance(adapter, cls.adapter_type)

    @staticmethod
    def takes(data: Any) -> bool:
        """True if `kp.data.shard` divides such data by this kind's `shard`."""
        return False

    @staticmethod
    def shard(data: Any, sharding: Sharding) -> Any:
        """This rank's share of what it takes, marked as that."""
        raise NotImplementedError

    @property
    def batch_size(self) -> int | None:
        """Rows of a full global batch, None if this is not known."""
        return self.adapter.batch_size

    @property
    def changed_rows(self) -> str | None:
        """What the policy does to the odd rows of a batch, None if they are all used once."""
        return None if self.is_sharded else {"wrap": "read twice", "drop": "left out"}.get(self.remainder)

    @property
    def may_end_unannounced(self) -> bool:
        """True if only reading shows how many batches there are."""
        return self.num_batches is None and not self.is_infinite

    def complaint(self, num_ranks: int) -> str | None:
        """One sentence about why this input cannot be trained on by `num_ranks`, or None."""
        is_small = self.batch_size is not None and self.batch_size < num_ranks
        if is_small and not self.is_sharded and self.remainder == "drop":
            return (
                f"remainder='drop' leaves nothing of global batches of {self.batch_size} rows, fewer than the "
                f"{num_ranks} ranks: use remainder='exact', or batches of at least one row a rank."
            )
        return None

    def checksum(self) -> int | None:
        """A number that differs if rows that all ranks were given alike do; None if `digest` tells while reading."""
        return None

    def begin_as_rank_0(self, communicator: Communicator) -> None:
        """Gives the `generators` the states of rank 0's."""

    def dataset(self, num_shards: int, shard_id: int, shuffle_seed: int | None, order: Any) -> tf.data.Dataset:
        """A dataset of one of the three kinds of shards, or of `OwnBatch`es if the user has sharded the input.

        Args:
            num_shards: number of ranks.
            shard_id: this rank.
            shuffle_seed: TensorFlow's global seed by which arrays are shuffled, None for this process's own.
            order: rank 0's `order`.
        """
        with without_distribution():
            self.unread = uncut = self._read(shuffle_seed, order)
            return self._own(uncut) if self.is_sharded else self._cut(uncut, num_shards, shard_id)

    def replay(self, dataset: tf.data.Dataset, position: Position) -> None:
        """Brings the data's seeds to where they were, as if the epochs before had been read.

        What orders data (seeds of shuffles, of PyDatasets, of generators) starts anew in a new process; making as many
        iterators as before and skipping what was read gives the same order, whatever the pipeline's buffers hold.

        Args:
            dataset: whose iterators are made, and read as far as its shuffling needs it.
            position: what to bring them to.
        """
        amount = self.num_to_replay
        for was_read in position.earlier:
            iterator = iter(let_go_aside(dataset.take(1) if amount == 1 else dataset))
            if was_read == "1" and amount != 0:
                for _ in iterator:
                    pass

    def _read(self, shuffle_seed: int | None, order: Any) -> tf.data.Dataset:
        """What all ranks read alike; of Python's making it has no tuning thread, which would delay its end."""
        options = tf.data.Options()
        options.autotune.enabled = False
        return self.adapter.get_tf_dataset().with_options(options)

    def _own(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        """This rank's own batches."""
        is_tuple = isinstance(dataset.element_spec, tuple)  # which `map` passes as several arguments
        return self._ahead(dataset.map(as_it_is(lambda *element: OwnBatch(element if is_tuple else element[0]))))

    def _cut(self, dataset: tf.data.Dataset, num_shards: int, shard_id: int) -> tf.data.Dataset:
        """This rank's rows of global batches."""
        if self.remainder == "drop":
            dataset = dataset.filter(as_it_is(lambda *element: num_rows(counting_component(element)) >= num_shards))
        self.digest = digest = Digest()
        history = History(dataset.element_spec)

        @as_it_is
        def cut_noted(index, batch):
            digest.note(index, batch)
            return cut(batch, num_shards, shard_id, self.remainder, history)

        return self._ahead(dataset.enumerate().map(cut_noted))

    def _ahead(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        """`dataset`, read ahead of the steps."""
        return dataset.prefetch(2)


class GeneratorInput(Input):
    """A generator of Python's, of which each rank has one of its own that gives the same batches."""

    adapter_type = GeneratorDataAdapter
    advice = "seed the numbers that the generator draws alike on every rank, as np.random.default_rng(0) does"

    @staticmethod
    def takes(data: Any) -> bool:
        return isinstance(data, types.GeneratorType)

    @staticmethod
    def shard(data: Any, sharding: Sharding) -> Any:
        """What a generator yields; this rank runs through all."""
        if sharding.remainder != "exact":
            sharding.refuse_unknown_length()
        return mark(row for number, row in enumerate(data) if sharding.has(number))


@contextlib.contextmanager
def without_distribution():
    """Hides the strategy from Keras's data adapters, which would refuse arrays or cut datasets their own way."""
    strategy = distribution_lib.distribution()
    distribution_lib.set_distribution(None)
    try:
        yield
    finally:
        distribution_lib.set_distribution(strategy)
