"""A rank of `keras-par doctor`'s self-test: checks sums and process sets, times all-reduces, notes how far it came."""

import json
import math
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import tensorflow as tf

from keras_par.base.rank_variables import number
from keras_par.comm import horovod
from keras_par.comm.communicator import Communicator
from keras_par.comm.horovod import HorovodCommunicator
from keras_par.comm.routes import shared
from keras_par.job import launch_environment, start_communication
from keras_par.job.launch_environment import Launch

REPEATS = {4: 100, 64 << 10: 100, 1 << 20: 50, 16 << 20: 10}  # timed all-reduces for each message size in bytes
WARM_UP = 5  # calls before the timed ones: connections are made, buffers grow, Horovod caches the name


class Record:
    """What this rank has found out so far, in a file that is whole at any time, also after a kill."""

    def __init__(self, path: Path):
        self._path = path
        self._facts: dict[str, Any] = {}

    def note(self, **facts: Any) -> None:
        """Adds `facts` and saves them."""
        self._facts |= facts
        fresh = self._path.with_suffix(".new")
        fresh.write_text(json.dumps(self._facts))
        fresh.replace(self._path)


def main(folder: str) -> None:
    """Runs as one rank of a launched job and leaves `folder`/rank.<r>.json.

    Its keys: "stage" (what the rank was doing last), "process_sets" (whether each summed over its members alone),
    "sums" (whether all all-reduces gave the right sum) and "messages", a list of {"bytes", "microseconds"}, the
    median time of an all-reduce of so many bytes; then "no_shared_memory" (why sums cannot go through the host's shared
    memory, or null), "shared_sums" and "shared_messages", as Horovod's are.

    Raises:
        RuntimeError: Horovod does not load.
    """
    rank = number("rank")
    record = Record(Path(folder) / f"rank.{rank}.json")
    launched = launch_environment.detect()
    communicator = by_tensorflow(record, launched) if launched.engine == "tensorflow" else by_horovod(record, launched)
    try_sizes(record, communicator, "", "reducing messages")
    record.note(stage="sharing memory")
    sharing = shared(communicator)
    record.note(no_shared_memory=communicator.no_shared_memory)
    if sharing is not communicator:
        try_sizes(record, sharing, "shared_", "summing in shared memory")
    communicator.barrier("selftest.end")
    record.note(stage="at the end")


def by_horovod(record: Record, launched: Launch) -> Communicator:
    """All ranks, when the process sets of halves of them have summed."""
    record.note(stage="loading Horovod")
    operations = horovod.load(launched.engine)
    record.note(stage="connecting to the other ranks")
    sets = [operations.ProcessSet(members) for members in halves(launched.size)]
    operations.init(process_sets=sets)  # the communicator's own init then finds Horovod started
    communicator = HorovodCommunicator(launched.engine, launched.size)
    record.note(stage="summing over process sets")
    record.note(process_sets=all([sums_over_members(operations, each) for each in sets if each.included()]))
    return communicator


def by_tensorflow(record: Record, launched: Launch) -> Communicator:
    """All ranks, when groups of halves of them have summed."""
    record.note(stage="connecting to the other ranks")
    communicator = start_communication.by_tensorflow(launched.size)
    record.note(stage="summing over groups of ranks")
    groups = halves(launched.size)
    own = next(members for members in groups if communicator.rank in members)
    [total] = communicator.group(groups).all_reduce([tf.constant(communicator.rank + 1)], "selftest.group")
    record.note(process_sets=int(total) == sum(member + 1 for member in own))
    return communicator


def try_sizes(record: Record, communicator: Communicator, kind: str, what: str) -> None:
    """Notes times and whether sums are right, under names that begin with `kind`."""
    messages: list[dict[str, float]] = []
    record.note(**{f"{kind}sums": True, f"{kind}messages": messages})
    for size, repeats in REPEATS.items():
        record.note(stage=f"{what} of {size} bytes")
        total, microseconds = measure(communicator, size, repeats)
        messages.append({"bytes": size, "microseconds": round(microseconds, 1)})
        if total != communicator.size * (communicator.size + 1) / 2:
            record.note(**{f"{kind}sums": False})


def halves(size: int) -> list[list[int]]:
    """The even and the odd ranks of `size`, at least 2."""
    return [list(range(first, size, 2)) for first in (0, 1)]


def sums_over_members(operations, process_set) -> bool:
    """Whether an all-reduce over `process_set` sums what its members gave, and nothing else."""
    name = f"selftest.set.{process_set.process_set_id}"
    total = operations._allreduce(tf.constant(operations.rank() + 1), name=name, process_set=process_set)
    return int(total) == sum(member + 1 for member in process_set.ranks)


def measure(communicator: Communicator, size: int, repeats: int) -> tuple[float, float]:
    """Times all-reduces of `size` bytes that sum 1, 2, ... over the ranks; returns the sum and the median microseconds.

    The sum is NaN where its elements differ. Horovod is called eagerly; shared memory is for sums in graphs.
    """
    value = tf.fill([size // 4], float(communicator.rank + 1))

    def reduced(given):
        return communicator.all_reduce([given], f"selftest.{size}")

    if communicator.reduces_by == "shared_memory":
        reduced = tf.function(reduced, autograph=False).get_concrete_function(value)
    seconds = []
    for _ in range(WARM_UP + repeats):
        begin = time.perf_counter()
        [total] = reduced(value)
        elements = total.numpy()
        seconds.append(time.perf_counter() - begin)
    total = float(elements[0]) if (elements == elements[0]).all() else math.nan
    return total, statistics.median(seconds[WARM_UP:]) * 1e6


if __name__ == "__main__":
    main(sys.argv[1])
