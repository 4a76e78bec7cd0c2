"""A program without TensorFlow that writes checkpoints without end in a child and kills it at random moments.

    python -m tests.kill_writer FOLDER NUM_KILLS SEED

After each kill the newest checkpoint must be whole, not older than the last that was completed, and of one piece.
"""

import os
import random
import signal
import sys
import time
import warnings
from pathlib import Path

import numpy as np

from keras_par.checkpoint import folder as folders
from keras_par.checkpoint import manifest as manifests
from keras_par.checkpoint.files import TEMPORARY, write_arrays
from keras_par.checkpoint.manifest import File, Manifest

NUM_RANKS, KEEP, PREFIX = 3, 2, "CKP"


def write_without_end(folder: Path, serial: int, pipe: int) -> None:
    """Writes checkpoints of arrays that are full of their serial number, and tells of each that is complete."""
    for rank in range(NUM_RANKS):
        folders.rank_folder(folder, rank).mkdir(exist_ok=True)
        folders.remove_leftovers(folder, PREFIX, rank)
    while True:
        serial += 1
        name = f"{PREFIX}-1_{serial % 5}"  # names come again, as those of a run that was set back
        manifests.path_of(folder, name).unlink(missing_ok=True)
        files = []
        for rank in range(NUM_RANKS):
            relative = folders.file_of(name, rank)
            arrays = {"model/a": np.full([300, 100], serial), "model/b": np.full([rank + 1], serial)}
            files.append(File(relative, *write_arrays(folder / relative, arrays)))
        manifests.write(
            folder, Manifest(name, serial, NUM_RANKS, "replicated", 0, serial, None, 0, None, [], {}, files)
        )
        for old in folders.complete(folder, PREFIX)[:-KEEP]:
            folders.remove(folder, old)
        os.write(pipe, serial.to_bytes(8, "little"))


def main() -> None:
    folder, num_kills = Path(sys.argv[1]), int(sys.argv[2])
    warnings.simplefilter("error")  # a checkpoint that cannot be read would warn
    moments = random.Random(int(sys.argv[3]))
    serial, in_the_middle = 0, 0
    for _ in range(num_kills):
        receiver, sender = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(receiver)
            write_without_end(folder, serial, sender)
        os.close(sender)
        time.sleep(moments.uniform(0.0, 0.06))
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
        manifest, files = found
        assert manifest.serial >= told, (manifest.serial, told)
        assert len(files) == NUM_RANKS
        assert all((array == manifest.serial).all() for arrays in files for array in arrays.values())
        assert folders.complete(folder, PREFIX)[-1] == manifest
        serial = manifest.serial
    print(f"kills: {num_kills}, in the middle of a write: {in_the_middle}, checkpoints: {serial}")


if __name__ == "__main__":
    main()
