"""Starts the job for a strategy whose options may say how, or where earlier training has found what is fastest."""

import os
import warnings
from dataclasses import replace
from pathlib import Path

from keras_par.comm import world
from keras_par.comm.agreement import AgreedValueError, exchange
from keras_par.distribution.runtime import init
from keras_par.plan.strategy_file import read_strategy
from keras_par.seam.binding import Options

AUTOTUNED = "keras-par-autotune.toml"


def start(options: Options, has_groups: bool = False) -> None:
    """`kp.init()` with the cycle time that the options want, and sums by the way they want.

    Args:
        options: of the strategy.
        has_groups: True if it may sum over a part of the ranks, which Horovod does in any case.

    Raises:
        ValueError: sums cannot go through shared memory, though the options insist on it.
    """
    is_early = not world.is_started()
    if is_early and options.cycle_time_ms is not None:
        world.set_cycle_time(options.cycle_time_ms)
    init()
    why = world.current().no_shared_memory
    if options.reduce_by == "shared_memory" and why is not None:
        raise AgreedValueError(
            f"keras-par: reduce_by='shared_memory' cannot be, because {why}: leave it out, or use 'horovod'."
        )
    use_cycle_time(options, is_early, has_groups)


def use_cycle_time(options: Options, is_set: bool = False, has_groups: bool = False) -> None:
    """Sets the cycle time that the options want, unless it `is_set`, and warns where it would decide over nothing."""
    if options.cycle_time_ms is None:
        return
    way = world.current().through(options.reduce_by).reduces_by
    if way == "shared_memory" and options.compression is None and not has_groups:
        warnings.warn(
            f"keras-par: cycle_time_ms={options.cycle_time_ms:g} is ignored, because sums go through the host's shared "
            "memory, which has no cycles: leave it out, or let Horovod sum by reduce_by='horovod'.",
            stacklevel=4,
        )
    elif not is_set:
        world.set_cycle_time(options.cycle_time_ms)


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
    tuned_options = replace(options, **known)
    if "cycle_time_ms" in known:
        use_cycle_time(tuned_options)
    return tuned_options
