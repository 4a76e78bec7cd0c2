"""Starts the job for a strategy, whose options may say how."""

import warnings

from keras_par.comm import world
from keras_par.comm.agreement import AgreedValueError, gather_or_raise
from keras_par.distribution.runtime import init
from keras_par.plan.options import OF_A_HOST, Options


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
        numbers = gather_or_raise(world.current(), "kp.local_sizes", world.current().local_size, None)
        if len(set(numbers)) > 1:
            raise AgreedValueError(
                f"keras-par: zero_ranks='{OF_A_HOST}' cannot be, because hosts have {min(numbers)} to {max(numbers)} "
                "ranks: start as many on each, or give a number."
            )
    why = world.current().no_shared_memory
    if options.reduce_by == "shared_memory" and why is not None:
        raise AgreedValueError(
            f"keras-par: reduce_by='shared_memory' cannot be, because {why}: leave it out, or use 'engine'."
        )
