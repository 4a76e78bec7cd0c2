"""A machine of round numbers, for searches whose best plan is known; and some whose links are drawn."""

from dataclasses import replace
from random import Random

from keras_par.plan.machine import Link, Machine

# Computing takes longer than sending, so that all ranks must have a part of it.
KNOWN = Machine(
    name="known",
    flops=1e9,
    bytes_per_second=1e10,
    update_bytes_per_second=1e10,
    kernel_seconds=1e-9,
    step_seconds=0.0,
    memory_gb=64,
    ranks_per_host=64,
    links={
        kind: dict.fromkeys(("host", "network"), Link(1e-5, 1e9, 1e-6))
        for kind in ("all_reduce", "all_gather", "reduce_scatter")
    },
)


def linked(draw: Random) -> Machine:
    """That machine with links that are slow or quick, so that it is best to send little or seldom."""
    link = Link(10 ** draw.uniform(-9, -4), 10 ** draw.uniform(5, 9), 10 ** draw.uniform(-9, -4))
    return replace(KNOWN, links={kind: dict.fromkeys(("host", "network"), link) for kind in KNOWN.links})
