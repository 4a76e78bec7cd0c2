"""Gives each rank its own rows of a tensorflow-datasets split, so that a rank opens only the files they are in."""

import functools
import importlib
import logging
import operator
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import tensorflow as tf

from keras_par.base.sentence import error_of
from keras_par.comm import world
from keras_par.comm.agreed import AgreedValueError
from keras_par.comm.communicator import Communicator, gather_or_raise
from keras_par.data.shard import sharding_of
from keras_par.keras_patches.inputs.own_shares import Sharding, mark
from keras_par.plan.fingerprint import first_unequal
from keras_par.plan.options import Remainder
from keras_par.plan.rows import own_spans, pieces

if TYPE_CHECKING:
    import tensorflow_datasets as tfds

logger = logging.getLogger("keras_par")


def load_tfds(
    name_or_builder: "str | tfds.core.DatasetBuilder",
    split: Any,
    *,
    data_dir: str | os.PathLike | None = None,
    download: bool = False,
    as_supervised: bool = False,
    shuffle_files: bool = False,
    seed: int = 0,
    num_shards: int | None = None,
    shard_id: int | None = None,
    remainder: Remainder = "exact",
    decoders: Any = None,
    read_config: "tfds.ReadConfig | None" = None,
) -> tf.data.Dataset:
    """This rank's rows of a tensorflow-datasets split, not batched; `fit` takes them as this rank's own.

    Example:
        ```python
        kp.init()
        data = kp.data.load_tfds("mnist", "train", data_dir="data", as_supervised=True, shuffle_files=True)
        data = data.map(lambda image, label: (tf.cast(image, tf.float32) / 255, label)).batch(32)  # for fit
        data.element_spec[0].shape  # -> TensorShape([None, 28, 28, 1])
        ```

    Batch them with the batch size of one rank. The rows are cut as `tfds.even_splits` cuts them, into runs of rows
    one behind another; a sum of splits is cut as one. A rank opens only files it has rows in, so give the data set at
    least as many file shards as there are ranks: with fewer, ranks share a file and skip each other's rows, which
    costs reading them, and rank 0 says so in the log.

    Args:
        name_or_builder: what `tfds.builder` takes, or a builder.
        split: what `tfds.load` takes for one split, such as "train", "train[:80%]" or "train+test".
        data_dir: where data sets are kept, by default tensorflow-datasets' own folder. Not used with a builder.
        download: True to download and prepare the data set if it is not in `data_dir`. Rank 0 does it, the others
            wait, and then read it; so all ranks need to see the folder.
        as_supervised: True for pairs (input, label) instead of dicts.
        shuffle_files: True to read this rank's files in another order each epoch.
        seed: decides that order, with TensorFlow's global seed; takes the place of `read_config`'s `shuffle_seed`.
        num_shards: number of shards, by default the number of ranks; under a `kp.ModelParallel` that is active,
            the length of its batch axis.
        shard_id: which shard, by default this rank's place among these. If given, this process loads by itself, and
            no rank waits for another.
        remainder: what happens when `num_shards` does not divide the number n of rows. "exact" puts each row on one
            shard, so that lengths differ by one; "wrap" gives every shard ceil(n / num_shards), a short one reading
            its first row twice; "drop" gives every shard floor(n / num_shards). What is read twice or left out
            rank 0 says in the log.
        decoders: as for `tfds.load`.
        read_config: as for `tfds.load`.

    Returns:
        A dataset of single rows, dicts or pairs as `tfds.load` gives them, whose length is known.

    Raises:
        RuntimeError: tensorflow-datasets is not installed, or kp.init() was not called.
        ValueError: an argument is out of range or not the same on all ranks, or the data set or the split is
            missing or cannot be prepared, on whichever rank: all ranks raise it.

    Costs four all-gathers of a few bytes, six with `download`; none with `shard_id`.
    """
    tfds = package()
    job = world.current() if shard_id is None else None
    sharding = sharding_of(num_shards, shard_id, remainder)
    name = name_or_builder if isinstance(name_or_builder, str) else name_or_builder.name
    where = f"data.load_tfds({name!r}, {str(split)!r})"
    found: list[Split] = []

    def arguments() -> dict[str, Any]:
        check(sharding, download and job is None, read_config)
        common = {"data set": name, "split": str(split), "num_shards": sharding.num_shards, "remainder": remainder}
        return common | {"shuffle_files": shuffle_files, "seed": seed, "download": download}

    def builder() -> Any:
        return tfds.builder(name, data_dir=data_dir) if isinstance(name_or_builder, str) else name_or_builder

    def prepare() -> dict[str, Any]:
        if (job is None or job.rank == 0) and not (data := builder()).is_prepared():
            data.download_and_prepare()
        return {}

    def find() -> dict[str, Any]:
        found.append(found_split(builder(), split))
        return {"rows and file shards": [found[0].num_rows, found[0].num_files]}

    if any(answer["download"] for answer in agreed(job, where, "arguments", arguments)):
        agreed(job, where, "prepared", prepare)
    agreed(job, where, "found", find)
    [data] = found
    sharding.say_remainder(data.num_rows, where, "rows")
    if sharding.shard_id == 0 and data.num_files < sharding.num_shards:
        logger.warning(
            f"keras-par: {where} has {data.num_files} file shard(s) for {sharding.num_shards} ranks, so ranks read "
            "the same files and skip each other's rows: prepare the data set with more, by "
            f"tfds.download.DownloadConfig(num_shards={sharding.num_shards}) or a multiple of that."
        )
    options = {"shuffle_files": shuffle_files, "decoders": decoders, "as_supervised": as_supervised}
    return mark(data.read(own_spans(data.num_rows, *sharding), seed, read_config, **options))


def package() -> Any:
    """tensorflow-datasets, an optional dependency.

    Raises:
        RuntimeError: it is not installed.
    """
    try:
        return importlib.import_module("tensorflow_datasets")
    except ImportError as error:
        raise RuntimeError(
            "keras-par: data.load_tfds needs tensorflow-datasets: run 'pip install tensorflow-datasets "
            "importlib_resources'."
        ) from error


def check(sharding: Sharding, downloads_alone: bool, read_config: Any) -> None:
    """Raises ValueError if these arguments of `load_tfds` are out of range or do not go together."""
    if downloads_alone and world.is_started() and world.current().size > 1:
        raise ValueError(
            "download=True with a shard_id would let every rank download: leave shard_id out, or prepare the data set "
            "before."
        )
    if read_config is not None and read_config.input_context is not None:
        raise ValueError("a read_config with an input_context is sharded already: leave the input_context out.")
    if sharding.complaint:
        raise ValueError(sharding.complaint)


def agreed(job: Communicator | None, where: str, step: str, make: Callable[[], dict[str, Any]]) -> list[dict[str, Any]]:
    """What `make` returns on all ranks, or only here where a process loads by itself; it may differ in "download".

    Raises:
        ValueError: on all ranks, if `make` raises on one of them, or returns something else than on rank 0.
    """
    value, wrong = {}, None
    try:
        value = make()
    except Exception as error:
        wrong = f"{where}: {error_of(type(error).__name__, str(error))}"
    if job is None and wrong:
        raise ValueError(f"keras-par: {wrong}")
    answers = [value] if job is None else gather_or_raise(job, f"kp.load_tfds.{step}", value, wrong)
    if unequal := first_unequal(answers, ("download",)):
        key, rank = unequal
        raise AgreedValueError(
            f"keras-par: data.load_tfds: {key} is {answers[0].get(key)!r} on rank 0 but {answers[rank].get(key)!r} on "
            f"rank {rank}: give all ranks the same arguments and the same data_dir."
        )
    return answers


class Split(NamedTuple):
    """A prepared split: its builder, its terms (name, start, stop) to be read one behind another, and its files."""

    builder: Any
    terms: list[tuple[str, int, int]]
    num_files: int

    @property
    def num_rows(self) -> int:
        return sum(stop - start for _, start, stop in self.terms)

    def read(self, spans: list[tuple[int, int]], seed: int, read_config: Any, **options: Any) -> tf.data.Dataset:
        """The rows in `spans` of the split, as `builder.as_dataset` reads them."""
        tfds = package()
        lengths = [stop - start for _, start, stop in self.terms]
        instructions = [
            tfds.core.ReadInstruction(name, from_=start + low, to=start + high, unit="abs")
            for span in spans or [(0, 1)]
            for term, low, high in pieces(lengths, *span)
            for name, start, _ in [self.terms[term]]
        ]
        config = (read_config or tfds.ReadConfig()).replace(shuffle_seed=seed)
        dataset = self.builder.as_dataset(functools.reduce(operator.add, instructions), read_config=config, **options)
        return dataset if spans else dataset.take(0)  # tensorflow-datasets refuses to read no rows


def found_split(builder: Any, split: Any) -> Split:
    """The split, if it is on disk.

    Raises:
        ValueError: the data set is not prepared, or it has no such split, or no rows in it.
    """
    if not builder.is_prepared():
        raise ValueError(
            f"the data set is not in {builder.data_dir}: prepare it before, pass download=True, or give the "
            "data_dir that has it."
        )
    if not builder.info.splits:  # the builder was made before rank 0 prepared its data set
        builder.info.read_from_directory(builder.data_dir)
    splits = builder.info.splits
    terms = [
        (term.splitname, term.from_ or 0, splits[term.splitname].num_examples if term.to is None else term.to)
        for term in package().core.ReadInstruction.from_spec(split).to_absolute(splits)
    ]
    found = Split(builder, terms, len({file.filename for file in splits[split].file_instructions}))
    if found.num_rows < 1:
        raise ValueError("the split has no rows: give another one.")
    return found
