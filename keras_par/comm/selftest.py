"""A rank of `keras-par doctor`'s self-test: checks sums and process sets, times all-reduces, notes how far it came."""

import json
import math
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import tensorflow as tf

from keras_par.comm import horovod, launch
from keras_par.comm.communicator import Communicator
from keras_par.comm.horovod import HorovodCommunicator

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

    Its keys: "stage" (what the rank was doing last), "process_sets" (whether each set summed over its members alone),
    "sums" (whether all all-reduces gave the right sum) and "messages", a list of {"bytes", "microseconds"}, the
    median time of an all-reduce of so many bytes.

    Raises:
        RuntimeError: Horovod does not load.
    """
    variables = ("OMPI_COMM_WORLD_RANK", "HOROVOD_RANK", "PMI_RANK")
    rank = next(os.environ[each] for each in variables if each in os.environ)
    record = Record(Path(folder) / f"rank.{rank}.json")
    record.note(stage="loading Horovod")
    operations = horovod.load()
    record.note(stage="connecting to the other ranks")
    launched = launch.detect()
    sets = [operations.ProcessSet(members) for members in halves(launched.size)]
    operations.init(process_sets=sets)  # the communicator's own init then finds Horovod started
    communicator = HorovodCommunicator(launched.engine, launched.size)
    record.note(stage="summing over process sets")
    record.note(process_sets=all([sums_over_members(operations, each) for each in sets if each.included()]))
    messages: list[dict[str, float]] = []
    record.note(sums=True, messages=messages)
    for size, repeats in REPEATS.items():
        record.note(stage=f"reducing messages of {size} bytes")
        total, microseconds = measure(communicator, size, repeats)
        messages.append({"bytes": size, "microseconds": round(microseconds, 1)})
        if total != communicator.size * (communicator.size + 1) / 2:
            record.note(sums=False)
    communicator.barrier("selftest.end")
    record.note(stage="at the end")


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

    The sum is NaN where its elements differ.
    """
    value = tf.fill([size // 4], float(communicator.rank + 1))
    seconds = []
    for _ in range(WARM_UP + repeats):
        begin = time.perf_counter()
        [total] = communicator.all_reduce([value], f"selftest.{size}")
        elements = total.numpy()
        seconds.append(time.perf_counter() - begin)
    total = float(elements[0]) if (elements == elements[0]).all() else math.nan
    return total, statistics.median(seconds[WARM_UP:]) * 1e6


if __name__ == "__main__":
    main(sys.argv[1])
