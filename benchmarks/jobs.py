"""How measurements start their processes, and let what they compare take turns."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
SCRIPTS = Path(sys.executable).parent


def environment(**variables: str) -> dict[str, str]:
    """That of this process without a launcher's variables; one thread an operation, and quiet."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("OMPI_", "PMIX_", "HOROVOD_"))}
    return {
        **kept,
        "PYTHONPATH": str(REPOSITORY),
        "KERAS_BACKEND": "tensorflow",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "OMP_NUM_THREADS": "1",
        "OPAL_PREFIX": sys.prefix,
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        # Large pages where the system has them for who asks, or where a process's memory happens to lie decides over a
        # third of its speed.
        "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
        **variables,
    }


def all_cores() -> int:
    """How many cores there are for this process."""
    return len(os.sched_getaffinity(0))


def mpirun(size: int, bound: bool | None = None) -> list[str]:
    """The mpirun command for ranks that are bound to a core each, by default where there are enough."""
    bound = size <= all_cores() if bound is None else bound
    binding = ["--bind-to", "core"] if bound else ["--oversubscribe", "--bind-to", "none"]
    return [str(SCRIPTS / "mpirun"), "-np", str(size), *binding, "--mca", "mpi_yield_when_idle", "1"]


def part(name: str, *options) -> list[str]:
    """The command of one part of the measurements."""
    return [sys.executable, "-m", "benchmarks", name, *map(str, options)]


def figures_of(command: list[str], **variables: str) -> list[dict]:
    """The list of figures that one of a command's processes prints as JSON."""
    result = subprocess.run(command, env=environment(**variables), stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(next(line[line.index("[{") :] for line in result.stdout.splitlines() if "[{" in line))


def threads(within: int, between: int = 1) -> None:
    """Gives TensorFlow so many threads within an operation, and between operations."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(within)
    tf.config.threading.set_inter_op_parallelism_threads(between)


def fit_of(model, **data):
    """A function that trains an epoch and returns its seconds, without those that fit needs to start and to end."""
    import keras

    moments: dict[str, float] = {}
    callback = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: moments.update(begin=time.perf_counter()),
        on_epoch_end=lambda epoch, logs: moments.update(end=time.perf_counter()),
    )

    def epoch():
        model.fit(**data, verbose=0, shuffle=False, callbacks=[callback])
        return moments["end"] - moments["begin"]

    return epoch


def alternate(systems, rounds: int) -> list[list[float]]:
    """Seconds of each system's epochs, taken in turns after two epochs each to warm up."""
    times: list[list[float]] = [[] for _ in systems]
    for number in range(-2, rounds):
        for system, measured in zip(systems, times, strict=True):
            seconds = system()
            if number >= 0:
                measured.append(seconds)
    return times
