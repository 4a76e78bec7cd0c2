"""Measures what Horovod's dynamic process sets, without which a mesh has no groups of ranks, cost a step.

    python -m benchmarks process-sets

A step is six products of 256 x 256 matrices and one all-reduce of four such matrices in one group. Each figure is of a
job of its own: ranks bound to a core each or not bound, with HOROVOD_DYNAMIC_PROCESS_SETS off and on, in turns.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

BINDINGS = {"bound": ["--bind-to", "core"], "unbound": ["--oversubscribe", "--bind-to", "none"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2, help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=3, help="jobs of each kind (%(default)s)")
    parser.add_argument("--steps", type=int, default=1500, help="of a job (%(default)s)")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        return worker(args.steps)
    fitting = BINDINGS if args.ranks <= len(os.sched_getaffinity(0)) else ["unbound"]
    print("ranks    process sets   medians, ms              slowest of 100, ms")
    for binding in fitting:
        times = {"0": [], "1": []}
        for _ in range(args.rounds):
            for dynamic, found in times.items():
                found.append(job(args, BINDINGS[binding], dynamic))
        for dynamic, found in times.items():
            medians, slow = ("  ".join(f"{value:6.2f}" for value in column) for column in zip(*found, strict=True))
            print(f"{binding:8} {'dynamic' if dynamic == '1' else 'none':14} {medians:24} {slow}")


def job(args, binding, dynamic):
    """Median and 99th percentile of rank 0's steps, in milliseconds."""
    mpirun = [str(Path(sys.executable).parent / "mpirun"), "-np", str(args.ranks), *binding]
    command = [*mpirun, "--mca", "mpi_yield_when_idle", "1", sys.executable, __file__, "--worker"]
    environment = {
        **os.environ,
        "HOROVOD_DYNAMIC_PROCESS_SETS": dynamic,
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "OMP_NUM_THREADS": "1",
        "OPAL_PREFIX": sys.prefix,
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }
    command += ["--steps", str(args.steps)]
    result = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return [float(word) for line in result.stdout.splitlines() if line.startswith("ms ") for word in line.split()[1:]]


def worker(num_steps):
    import horovod.tensorflow as hvd
    import tensorflow as tf

    hvd.init()
    matrices = [tf.random.normal([256, 256]) for _ in range(6)]

    @tf.function
    def step():
        product = matrices[0]
        for matrix in matrices:
            product = tf.linalg.matmul(product, matrix) / 16.0
        return hvd.grouped_allreduce([product, *map(tf.identity, matrices[:3])])

    seconds = []
    for number in range(-30, num_steps):
        begin = time.perf_counter()
        step()
        seconds += [time.perf_counter() - begin] if number >= 0 else []
    if hvd.rank() == 0:
        print("ms", 1000 * statistics.median(seconds), 1000 * statistics.quantiles(seconds, n=100)[-1])


if __name__ == "__main__":
    main()
