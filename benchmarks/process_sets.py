"""Measures what Horovod's dynamic process sets, without which a mesh has no groups of ranks, cost a step.

    python -m benchmarks process-sets

A step is six products of 256 x 256 matrices and one all-reduce of four such matrices in one group. Each figure is of a
job of its own: ranks bound to a core each or not bound, with HOROVOD_DYNAMIC_PROCESS_SETS off and on, in turns.
"""

import argparse
import json
import statistics
import time

from benchmarks.jobs import all_cores, figures_of, mpirun, part


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2, help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=3, help="jobs of each kind (%(default)s)")
    parser.add_argument("--steps", type=int, default=1500, help="of a job (%(default)s)")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        return worker(args.steps)
    print("ranks    process sets   medians, ms              slowest of 100, ms")
    for is_bound in (True, False) if args.ranks <= all_cores() else (False,):
        times = {"0": [], "1": []}
        for _ in range(args.rounds):
            for dynamic, found in times.items():
                found.append(job(args, is_bound, dynamic))
        for dynamic, found in times.items():
            medians, slow = ("  ".join(f"{value:6.2f}" for value in column) for column in zip(*found, strict=True))
            ranks, sets = "bound" if is_bound else "unbound", "dynamic" if dynamic == "1" else "none"
            print(f"{ranks:8} {sets:14} {medians:24} {slow}")


def job(args, is_bound, dynamic):
    """Median and 99th percentile of rank 0's steps, in milliseconds."""
    worker = part("process-sets", "--worker", "--steps", args.steps)
    [figure] = figures_of([*mpirun(args.ranks, is_bound), *worker], HOROVOD_DYNAMIC_PROCESS_SETS=dynamic)
    return [figure["median"], figure["slow"]]


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
        slow = statistics.quantiles(seconds, n=100)[-1]
        print(json.dumps([{"median": 1000 * statistics.median(seconds), "slow": 1000 * slow}]), flush=True)


if __name__ == "__main__":
    main()
