"""Starts the job for a strategy whose options may say how, or where earlier training has found what is fastest."""

import os
from dataclasses import replace
from pathlib import Path

from keras_par.catalogue.strategy_file import read_strategy
from keras_par.comm import world
from keras_par.comm.agreement import AgreedValueError, exchange
from keras_par.distribution.runtime import init
from keras_par.plan.options import Options

AUTOTUNED = "keras-par-autotune.toml"


def start(options: Options) -> None:
    """`kp.init()` with sums by the way that the options want.

    Raises:
        ValueError: sums cannot go through shared memory, though the options insist on it.
    """
    init()
    why = world.current().no_shared_memory
    if options.reduce_by == "shared_memory" and why is not None:
        raise AgreedValueError(
            f"keras-par: reduce_by='shared_memory' cannot be, because {why}: leave it out, or use 'horovod'."
        )


def tuned(options: Options, autotune: bool | str | os.PathLike) -> Options:
    """The options with the bucket size in rank 0's file, else with that file for what will be found.

    Costs two all-gathers of a few bytes if `autotune` is a path.

    Raises:
        ValueError: `autotune` is neither True nor a path, or the file is wrong.
    """
    if autotune is True:
        return replace(options, autotune=AUTOTUNED)
    if not isinstance(autotune, (str, os.PathLike)):
        raise ValueError(f"keras-par: autotune={autotune!r} is unknown, use True, False, or the path of a file.")
    path, found, complaint = os.fspath(autotune), None, None
    communicator = world.current()
    if communicator.rank == 0 and os.path.exists(path):
        try:
            found = read_strategy(Path(path)).options
        except (OSError, ValueError) as error:
            complaint = str(error).removeprefix("keras-par: ")
    found = exchange(communicator, "kp.autotune.file", found, complaint)[0]
    if found is None:
        return replace(options, autotune=path)
    return replace(options, fusion_mb=found.get("fusion_mb", options.fusion_mb))
