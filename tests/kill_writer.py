"""A program that writes checkpoints without end in a child process and kills it at random moments.

    python -m tests.kill_writer FOLDER NUM_HITS SEED

It goes on until so many kills were in the middle of a write, which on a fast disk are few of all, and so many
checkpoints are complete, which on a busy machine are few. After each kill the newest checkpoint must be whole, not
older than the last that was completed, and of one piece.
"""

import json
import os
import random
import signal
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from keras_par.checkpoint import folder as folders
from keras_par.checkpoint.disk import Disk
from keras_par.checkpoint.files import TEMPORARY
from keras_par.checkpoint.grid import in_a_row
from keras_par.checkpoint.manifest import Manifest
from keras_par.checkpoint.writer import Writer

NUM_RANKS, KEEP, PREFIX = 3, 2, "CKP"
CHANGES_EVERY = 4  # checkpoints the arrays that are called frozen change


class Threads:
    """Three ranks that are threads: what the writer needs of a communicator."""

    size = NUM_RANKS

    def __init__(self, rank: int, barrier: threading.Barrier, values: list):
        self.rank, self._barrier, self._values = rank, barrier, values

    def all_gather_object(self, value, name: str) -> list:
        self._values[self.rank] = json.dumps(value)
        self._barrier.wait()
        gathered = [json.loads(each) for each in self._values]
        self._barrier.wait()
        return gathered


def write_without_end(folder: Path, serial: int, communicator: Any, pipe: int) -> None:
    """Writes checkpoints of arrays that are full of their serial number, and tells of each that is complete."""
    rank = communicator.rank
    folders.rank_folder(folder, rank).mkdir(exist_ok=True)
    found = [
        [path.stem for path in folder.glob("*.json")],
        list(folders.frozen_files(folders.complete(folder, PREFIX))),
    ]
    names, frozen = communicator.all_gather_object(found, "found")[0]
    folders.remove_leftovers(folder, PREFIX, rank, names, frozen)
    writer = Writer(Disk(folder, PREFIX, KEEP, rank), folder, True, communicator)
    while True:
        serial += 1
        name = f"{PREFIX}-1_{serial % 5}"  # names come again, as those of a run that was set back
        arrays = {"model/a": np.full([300, 100], serial), "model/b": np.full([rank + 1], serial)}
        arrays |= {"model/frozen": np.full([200, 100], serial // CHANGES_EVERY)}
        manifest = Manifest(name, serial, in_a_row(NUM_RANKS), 0, serial, None, 0, None, [], {}, [])
        writer.begin(manifest, arrays, None, {"model/frozen"})
        writer.finish()
        if rank == 0:
            os.write(pipe, serial.to_bytes(8, "little"))


def write_by_threads(folder: Path, serial: int, pipe: int) -> None:
    barrier, values = threading.Barrier(NUM_RANKS), [""] * NUM_RANKS
    for rank in range(1, NUM_RANKS):
        arguments = (folder, serial, Threads(rank, barrier, values), pipe)
        threading.Thread(target=write_without_end, args=arguments).start()
    write_without_end(folder, serial, Threads(0, barrier, values), pipe)


def main() -> None:
    folder, num_hits = Path(sys.argv[1]), int(sys.argv[2])
    warnings.simplefilter("error")  # a checkpoint that cannot be read would warn
    moments = random.Random(int(sys.argv[3]))
    serial = num_kills = in_the_middle = 0
    while min(in_the_middle, serial) < num_hits:
        num_kills += 1
        assert num_kills <= 50 * num_hits, "no kill is in the middle of a write, or no write is complete"
        receiver, sender = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                write_by_threads(folder, serial, sender)
            finally:
                os._exit(1)  # not reached but by an error, after which no checkpoint would come any more
        os.close(sender)
        time.sleep(moments.uniform(0.0, 0.08))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        completed = os.read(receiver, 1 << 16)
        os.close(receiver)
        told = int.from_bytes(completed[-8:], "little") if completed else serial
        in_the_middle += any(path.name.endswith(TEMPORARY) for path in folder.rglob("*"))
        found = folders.newest_whole(folder, PREFIX)
        if found is None:
            assert told == 0
            continue
        manifest = found.manifest
        assert manifest.serial >= told, (manifest.serial, told)
        assert len(manifest.files) == NUM_RANKS
        for rank in range(NUM_RANKS):
            assert found.names(rank) == ["model/a", "model/b", "model/frozen"]
            assert all((found.read(rank, name) == manifest.serial).all() for name in ("model/a", "model/b"))
            assert (found.read(rank, "model/frozen") == manifest.serial // CHANGES_EVERY).all()
        found.close()
        assert folders.complete(folder, PREFIX)[-1] == manifest
        serial = manifest.serial
    print(f"kills: {num_kills}, in the middle of a write: {in_the_middle}, checkpoints: {serial}")


if __name__ == "__main__":
    main()
