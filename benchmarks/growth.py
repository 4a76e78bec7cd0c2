"""Measures how the time and the bytes of a reduction grow with ranks and parameters.

    python -m benchmarks growth

Ten gradients of equal size are summed by `kp.GradientReducer`, on ranks of one host. What is sent is counted by the
host's loopback interface, so that it is what really went over it, headers and all: by Gloo, and by Open MPI kept from
its shared memory. A ring all-reduce of B bytes on N ranks sends 2 (N - 1) / N x B from each rank, which is the least
that any algorithm can. Beside it are the times of MPI's own choice, which is shared memory, and of this package's sums
through shared memory, for which Horovod does nothing. More ranks than cores take turns, so that their times are those
of communication only, and of a busy machine.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

from benchmarks.jobs import SCRIPTS, figures_of, mpirun, part, threads

NUM_GRADIENTS = 10
SHARED = "shared memory"
WAYS = ("gloo", "mpi over TCP", "mpi", SHARED)
COUNTED = WAYS[:2]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4, 8], help="default: %(default)s")
    parser.add_argument("--parameters", type=float, nargs="+", default=[1e5, 1e6, 1e7, 1e8], help="%(default)s")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS), help="default: all")
    parser.add_argument("--seconds", type=float, default=2.0, help="about as long is each repeated (%(default)s)")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--worker", choices=WAYS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        return worker(args)
    figures = [figure for way in args.ways for size in args.ranks for figure in job(way, size, args)]
    show(figures)
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1))


def job(way, size, args):
    """The figures of a job of `size` ranks."""
    worker = part("growth", "--worker", way, "--seconds", args.seconds, "--parameters", *args.parameters)
    launcher = [] if size == 1 else mpirun(size, bound=False)
    if size > 1 and way == "gloo":
        launcher = [str(SCRIPTS / "horovodrun"), "--gloo", "-np", str(size)]
    elif size > 1 and way == "mpi over TCP":
        launcher += ["--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "lo"]
    return figures_of([*launcher, *worker], KERAS_PAR_SHARED_MEMORY=str(int(way == SHARED)))


def worker(args):
    threads(1)
    import tensorflow as tf

    import keras_par as kp

    kp.init()
    figures = []
    for parameters in map(int, args.parameters):
        gradients = [tf.ones([parameters // NUM_GRADIENTS]) for _ in range(NUM_GRADIENTS)]
        reducer = kp.GradientReducer(mean=False)

        @tf.function
        def step(gradients=gradients, reducer=reducer):
            return reducer(gradients)

        step()  # traces, and makes Horovod's buffers
        kp.barrier()
        begin = time.perf_counter()
        step()
        repetitions = 3 + int(args.seconds / (time.perf_counter() - begin))
        repetitions = agreed(repetitions)
        idle = traffic(lambda: time.sleep(0.5)) / 0.5 if kp.rank() == 0 else 0.0
        kp.barrier()
        seconds = []

        def steps(step=step, seconds=seconds, repetitions=repetitions):
            for _ in range(repetitions):
                begin = time.perf_counter()
                step()
                seconds.append(time.perf_counter() - begin)
            kp.barrier()

        begin = time.perf_counter()
        sent = traffic(steps) - idle * (time.perf_counter() - begin)
        figures.append(
            {
                "way": args.worker,
                "ranks": kp.size(),
                "parameters": parameters,
                "ms": 1000 * statistics.median(seconds),
                "bytes_a_rank": sent / repetitions / kp.size(),
                "ring": 2 * (kp.size() - 1) / kp.size() * 4 * parameters,
            }
        )
    if kp.rank() == 0:
        print(json.dumps(figures), flush=True)


def agreed(number):
    """Rank 0's number."""
    import tensorflow as tf

    from keras_par.comm import world

    return int(world.current().broadcast([tf.constant(number)], "growth.repetitions")[0])


def traffic(act):
    """Bytes that the loopback interface sends while `act` runs, of all processes of the host."""
    import psutil

    before = psutil.net_io_counters(pernic=True)["lo"].bytes_sent
    act()
    return psutil.net_io_counters(pernic=True)["lo"].bytes_sent - before


def show(figures):
    from rich.console import Console
    from rich.table import Table

    table = Table("way", "ranks", "parameters", "ms", "MB a rank sends", "of a ring's")
    for row in figures:
        is_counted = row["ranks"] > 1 and row["way"] in COUNTED
        sent = (
            (f"{row['bytes_a_rank'] / 1e6:.2f}", f"{row['bytes_a_rank'] / row['ring']:.3f}") if is_counted else ("", "")
        )
        table.add_row(row["way"], str(row["ranks"]), f"{row['parameters']:.0e}", f"{row['ms']:.2f}", *sent)
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
