"""Gives each rank its own strided share of any input that `fit` takes."""

from typing import Any

from keras_par.keras_patches.inputs.kinds import shard_of_data
from keras_par.keras_patches.inputs.own_shares import Sharding
from keras_par.keras_patches.variables.layouts import data_place
from keras_par.plan.options import Remainder


def shard(data: Any, num_shards: int | None = None, shard_id: int | None = None, remainder: Remainder = "exact") -> Any:
    """Elements shard_id, shard_id + num_shards, ... of `data`; `fit` takes the result as this rank's own.

    Example:
        ```python
        kp.init()
        rows = kp.data.shard(tf.data.Dataset.range(5))
        [int(number) for number in rows]  # -> [0, 2, 4] on rank 0, [1, 3] on rank 1
        data = rows.map(lambda number: (tf.one_hot(number, 5), number)).batch(32)  # for fit, 32 rows on each rank
        ```

    | data | an element is | returns |
    |---|---|---|
    | tf.data.Dataset | what it yields | a dataset; batch it afterwards with the batch size of one rank |
    | list of names of files | a name | a dataset of names |
    | array, DataFrame, dict or tuple of them | a row | a dataset of rows; shuffle and batch it afterwards |
    | keras.utils.PyDataset | a batch | a PyDataset, which loads its own batches only |
    | torch DataLoader | a batch | a DataLoader, which loads its own batches only |
    | generator | what it yields | a generator, which runs through all and gives its own |

    Shard a tf.data.Dataset before it parses, decodes or maps, so that no rank does this for other ranks' rows, and
    shuffle before it only with a seed that all ranks share. Where there are at least as many files as ranks, shard
    the list of files, so that a rank does not even read other ranks' rows:
    `tf.data.TFRecordDataset(kp.data.shard(paths))`.

    Args:
        data: one of the kinds above, the same on every rank.
        num_shards: number of shards, by default the number of ranks; under a `kp.ModelParallel` that is active,
            the length of its batch axis.
        shard_id: which shard, by default this rank's place among these.
        remainder: what happens when `num_shards` does not divide the length n. "exact": each element is in one
            shard, and lengths differ by at most one; `fit` weighs them right, but a loop of your own would wait for
            ranks that have ended. "wrap": every shard has ceil(n / num_shards) elements, a short one going on from
            the first element. "drop": every shard has floor(n / num_shards).

    Returns:
        This rank's share, of the kind that the table tells.

    Raises:
        ValueError: an argument is out of range, the kind of data is not known here, or its length is not known and
            `remainder` is not "exact".

    Costs no collective.
    """
    sharding = sharding_of(num_shards, shard_id, remainder)
    if wrong := sharding.complaint:
        raise ValueError(f"keras-par: data.shard{wrong}")
    return shard_of_data(data, sharding)


def sharding_of(num_shards: int | None, shard_id: int | None, remainder: Remainder) -> Sharding:
    """In place of None the number of ranks that have other rows, and which of them this is; a fault is its complaint's.

    Raises:
        RuntimeError: kp.init() was not called, and one is None.
    """
    if num_shards is None or shard_id is None:
        num_places, place = data_place()
        num_shards = num_places if num_shards is None else num_shards
        shard_id = place if shard_id is None else shard_id
    return Sharding(num_shards, shard_id, remainder)
