"""Starts the job for a strategy whose options may say how, or where earlier training has found what is fastest."""

import os
from dataclasses import replace
from pathlib import Path

from keras_par.comm import world
from keras_par.comm.agreement import exchange
from keras_par.distribution.runtime import init
from keras_par.plan.strategy_file import read_strategy
from keras_par.seam.binding import Options

AUTOTUNED = "keras-par-autotune.toml"


def start(options: Options) -> None:
    """`kp.init()` with the cycle time that the options want."""
    if options.cycle_time_ms is not None:
        world.set_cycle_time(options.cycle_time_ms)
    init()


def tuned(options: Options, autotune: bool | str | os.PathLike) -> Options:
    """The options with the bucket size and cycle time in rank 0's file, else with that file for what will be found.

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
    known = {key: found[key] for key in ("fusion_mb", "cycle_time_ms") if key in found}
    if "cycle_time_ms" in known:
        world.set_cycle_time(known["cycle_time_ms"])
    return replace(options, **known)
