"""Starts the job for a strategy whose options may say how, or where earlier training has found what is fastest."""

import os
import warnings
from dataclasses import replace
from pathlib import Path

from keras_par.catalogue.strategy_file import read_strategy
from keras_par.comm import world
from keras_par.comm.agreement import AgreedValueError, exchange
from keras_par.distribution.runtime import init
from keras_par.plan.options import OF_A_HOST, Options

AUTOTUNED = "keras-par-autotune.toml"


def start(options: Options) -> None:
    """`kp.init()` with sums by the way that the options want. Warns of options that do nothing.

    Raises:
        ValueError: sums cannot go through shared memory, though the options insist on it; or hosts have unequal numbers
            of ranks, though these are to divide what `zero` divides.
    """
    init()
    for name in ("zero_min_kb", "zero_ranks"):
        if getattr(options, name) != getattr(Options, name) and not options.zero:
            warnings.warn(
                f"keras-par: {name}={getattr(options, name)!r} is ignored, because zero is 0: give zero=1, 2 or 3, or "
                f"leave {name} out.",
                stacklevel=4,
            )
    if options.zero_ranks == OF_A_HOST:
        numbers = exchange(world.current(), "kp.local_sizes", world.current().local_size, None)
        if len(set(numbers)) > 1:
            raise AgreedValueError(
                f"keras-par: zero_ranks='{OF_A_HOST}' cannot be, because hosts have {min(numbers)} to {max(numbers)} "
                "ranks: start as many on each, or give a number."
            )
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
