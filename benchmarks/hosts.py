"""Measures what goes between two hosts, and how long a step takes, for each way of dividing the work.

    python -m benchmarks hosts

One machine plays two hosts of two ranks each, which a cable of 1 Gbit/s joins (network namespaces; needs root, and
Debian's iproute2, for MPI also openssh-server).

All ways train the same Dense network in turns within one job over one engine. The bytes are those that a host sends
over the cable in a step, beside the bytes of the weights.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.jobs import environment, mpirun, part, threads
from tests.hosts import namespaces, openssh

NAMES = ("kp-host-0", "kp-host-1")
RANKS_OF_HOST, WIDTH, NUM_LAYERS, ROWS = 2, 1024, 4, 32
PORT = "29517"
# Options of kp.DataParallel, and how often a host sends the weights' bytes. A ring of N ranks sends 2 (N - 1) / N over
# each link, two levels over H hosts 2 (H - 1) / H; zero=3 scatters once and gathers twice, each with half of the bytes
# of a sum.
WAYS = {
    "flat ring of all ranks": ({"reduce_by": "engine"}, 2 * 3 / 4),
    "two levels": ({}, 1.0),
    "zero=1, a replica a host": ({"zero": 1, "zero_ranks": "host"}, 1.0),
    "zero=3, a replica a host": ({"zero": 3, "zero_ranks": "host"}, 1.0),
    "zero=3 over all ranks": ({"zero": 3}, 3 / 2),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="epochs of each way (%(default)s)")
    parser.add_argument("--steps", type=int, default=5, help="steps of an epoch (%(default)s)")
    parser.add_argument("--megabits", type=int, default=1000, help="that the cable carries in a second (%(default)s)")
    parser.add_argument("--engine", choices=("mpi", "gloo", "tensorflow"), default="gloo", help="(%(default)s)")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        return worker(args)
    figures = launch(args)
    show(figures)
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1))


def launch(args) -> list[dict]:
    """The figures of a job of two hosts."""
    command = part("hosts", "--worker", "--rounds", args.rounds, "--steps", args.steps)
    start = by_mpirun if args.engine == "mpi" else one_by_one
    with namespaces.hosts(*NAMES) as hosts:
        for name in NAMES if args.megabits else ():
            hosts.limit(name, args.megabits)
        with start(hosts, command, environment(KERAS_PAR_ENGINE=args.engine)) as processes:
            printed, _ = processes[0].communicate()
            if any(process.wait() for process in processes):
                raise RuntimeError("a rank failed")
    return json.loads(next(line for line in printed.splitlines() if line.startswith("[{")))


@contextlib.contextmanager
def one_by_one(hosts: namespaces.Hosts, command: Sequence[str], variables: dict[str, str]) -> Iterator[list]:
    """The processes of all ranks, which meet at rank 0's host."""
    size = len(NAMES) * RANKS_OF_HOST
    meeting = {"MASTER_ADDR": namespaces.address(0), "MASTER_PORT": PORT, "HOROVOD_GLOO_IFACE": namespaces.CABLE}
    yield [
        hosts.start(
            NAMES[rank // RANKS_OF_HOST],
            command,
            {**variables, **meeting, "RANK_SIZE": str(size), "RANK_ID": str(rank)},
            stdout=subprocess.PIPE if rank == 0 else None,
            text=True,
        )
        for rank in range(size)
    ]


@contextlib.contextmanager
def by_mpirun(hosts: namespaces.Hosts, command: Sequence[str], variables: dict[str, str]) -> Iterator[list]:
    """The process of mpirun, which starts ranks on both hosts."""
    begin = [*mpirun(len(NAMES) * RANKS_OF_HOST, bound=False), "--prefix", sys.prefix]
    begin += ["--mca", "btl_tcp_if_include", namespaces.CABLE]
    begin += ["-H", ",".join(f"{name}:{RANKS_OF_HOST}" for name in NAMES)]
    begin += [word for name in variables for word in ("-x", name)]
    with openssh.servers(hosts):
        yield [hosts.start(NAMES[0], [*begin, *command], variables, stdout=subprocess.PIPE, text=True)]


def worker(args):
    threads(1)
    import keras_par as kp

    kp.init()
    assert kp.size() == len(NAMES) * RANKS_OF_HOST
    found = {way: trained(options, args.steps) for way, (options, _) in WAYS.items()}
    seconds, num_bytes = {way: [] for way in WAYS}, {way: [] for way in WAYS}
    for number in range(-2, args.rounds):
        for way, (epoch, _) in found.items():
            taken, sent = epoch()
            if number >= 0:
                seconds[way].append(taken / args.steps)
                num_bytes[way].append(sent / args.steps)
    if kp.rank() == 0:
        figures = [
            {
                "way": way,
                "ms": statistics.median(seconds[way]) * 1e3,
                "bytes": statistics.median(num_bytes[way]),
                "weights": found[way][1],
                "expected": expected,
            }
            for way, (_, expected) in WAYS.items()
        ]
        print(json.dumps(figures), flush=True)
    sys.stdout.flush()
    kp.shutdown()
    os._exit(0)


def trained(options, steps):
    """A function that trains an epoch and returns its seconds and what it sent; and the bytes of the weights."""
    import keras
    import numpy as np
    import tensorflow as tf

    import keras_par as kp

    keras.utils.set_random_seed(1)
    with kp.DataParallel(**options).scope():
        hidden = [keras.layers.Dense(WIDTH, "relu") for _ in range(NUM_LAYERS)]
        model = keras.Sequential([keras.Input((WIDTH,)), *hidden])
        model.compile(keras.optimizers.Adam(1e-4), "mse")
    x = np.random.default_rng(0).normal(size=(steps * ROWS, WIDTH)).astype("float32")
    settings = tf.data.Options()
    settings.autotune.enabled = False
    data = tf.data.Dataset.from_tensor_slices((x, x)).batch(ROWS, drop_remainder=True).with_options(settings)
    meter = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: note(moments, "begin"), on_epoch_end=lambda epoch, logs: note(moments, "end")
    )
    moments: dict[str, tuple[float, int]] = {}
    data = data.cache()

    def epoch():
        model.fit(data, verbose=0, callbacks=[meter])
        return tuple(end - begin for begin, end in zip(moments["begin"], moments["end"], strict=True))

    return epoch, 4 * model.count_params()


def note(moments, name):
    """The time, and what the host has sent, once all ranks are there."""
    import keras_par as kp

    kp.barrier()
    moments[name] = time.perf_counter(), namespaces.sent_bytes()


def show(figures):
    from rich.console import Console
    from rich.table import Table

    table = Table("way", "ms a step", "MB a host sends in a step", "times the weights", "expected")
    for row in figures:
        ratio = row["bytes"] / row["weights"]
        table.add_row(
            row["way"], f"{row['ms']:.0f}", f"{row['bytes'] / 1e6:.1f}", f"{ratio:.2f}", f"{row['expected']:.2f}"
        )
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
