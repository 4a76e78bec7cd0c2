"""What `keras-par doctor` recommends for a host: engine, ranks, threads, binding and Horovod's cycle time."""

from dataclasses import dataclass
from typing import Literal

from keras_par.doctor.host import Host

RANK_MEMORY = 1 << 30  # bytes: a rank takes half of this for TensorFlow and Horovod alone
CYCLE_BOUND, CYCLE_DEFAULT = 0.2, 1.0  # milliseconds; short cycles steal time from ranks that share cores


@dataclass(frozen=True)
class Advice:
    """How to start jobs on this host."""

    engine: str
    ranks: int
    threads: int  # a rank
    binding: Literal["core", "none"]  # core: each rank to `threads` cores of its own
    cycle_time: float  # HOROVOD_CYCLE_TIME, milliseconds


def advise(host: Host, engine: str, num_gpus: int = 0) -> Advice:
    """One rank for each of `num_gpus` that TensorFlow sees, else one a core, as far as memory goes."""
    ranks = num_gpus or max(1, min(host.usable_cores, host.memory_available // RANK_MEMORY))
    return Advice(
        engine=engine,
        ranks=ranks,
        threads=max(1, host.usable_cores // ranks),
        binding="core" if ranks <= host.usable_cores else "none",
        cycle_time=cycle_time(ranks, host),
    )


def cycle_time(ranks: int, host: Host) -> float:
    """HOROVOD_CYCLE_TIME in milliseconds for `ranks` ranks on `host`, which keras-par run binds where cores suffice."""
    return CYCLE_BOUND if ranks <= host.usable_cores else CYCLE_DEFAULT
