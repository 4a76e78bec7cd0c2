"""Says what is wrong with the arguments that the functions here share."""

from typing import get_args

from keras_par.keras_patches.variables.layouts import data_place
from keras_par.plan.options import Remainder


def place_of(num_shards: int | None, shard_id: int | None) -> tuple[int, int]:
    """The arguments, or in place of None the number of ranks that have other rows, and which of them this is."""
    if num_shards is not None and shard_id is not None:
        return num_shards, shard_id
    num_places, place = data_place()
    return num_places if num_shards is None else num_shards, place if shard_id is None else shard_id


def complaint(num_shards: int, shard_id: int, remainder: str) -> str | None:
    """What is wrong with these, as the end of a sentence that begins with a function's name, or None."""
    if num_shards < 1 or not 0 <= shard_id < num_shards:
        return f"(num_shards={num_shards}, shard_id={shard_id}) needs 0 <= shard_id < num_shards."
    if remainder not in get_args(Remainder):
        return f"(remainder={remainder!r}) is unknown, use 'exact', 'wrap' or 'drop'."
    return None
