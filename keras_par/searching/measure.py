"""A rank of `keras-par calibrate`: measures what this machine computes and sends, which costs are made of.

Starts as any program: `keras-par run -np 2 -m keras_par.searching.measure machine.toml`.
"""

import functools
import math
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import keras
import psutil
import tensorflow as tf

from keras_par.comm import world
from keras_par.comm.communicator import Communicator
from keras_par.distribution.data_parallel import DataParallel
from keras_par.distribution.runtime import init
from keras_par.plan.case import Collective
from keras_par.plan.machine import Link, Machine, crossing_bytes
from keras_par.plan.variable_cost import update_bytes

WIDTH = 1024  # of the product that is timed
FEW, WIDE, WEIGHTS = 32, 2048, 4  # rows, width and number of products that read more weights than caches hold
NUM_ELEMENTS = 1 << 22  # of the variable that is updated
COPIES = ((1 << 18, 16), (1 << 23, 2), (1 << 24, 2))  # elements of tensors that are read and written, and how often
CHAIN = 200  # operations on small tensors, one after another
SIZES = (1 << 12, 1 << 16, 1 << 20, 1 << 23, 1 << 25)  # bytes of messages
PRODUCTS, ROWS = 3, 128  # beside which something is sent, as long as that takes
ASIDE = 24  # small collectives that do not wait for each other
REPEATS = 7
IN_A_ROW = 4  # collectives of a call


def measure() -> Machine:
    """What all ranks of this job measure at the same time, as rank 0 found it. Takes some 10 seconds."""
    init()
    job = world.current()
    a, b = (tf.random.stateless_uniform((WIDTH, WIDTH), (1, i)) for i in range(2))
    product = time_of(lambda: tf.linalg.matmul(a, b))
    small = tf.ones([8])
    chain = time_of(lambda: functools.reduce(lambda value, _: tf.math.sin(value), range(CHAIN), small))
    update_bytes_per_second = update_bytes(4 * NUM_ELEMENTS, 8 * NUM_ELEMENTS) / update_time()
    num_local = job.local_size
    links: dict[str, dict[str, Link]] = {}
    if job.size > 1:
        reach = "host" if num_local == job.size else "network"
        kinds: dict[Collective, Callable[[Communicator, tf.Tensor, str], tf.Tensor]] = {
            "all_reduce": lambda group, tensor, name: group.all_reduce([tensor], name)[0],
            "all_gather": lambda group, tensor, name: group.all_gather(tensor, name),
            "reduce_scatter": lambda group, tensor, name: group.reduce_scatter([tensor], name)[0],
        }
        links = {kind: {reach: link_of(job, kind, call)} for kind, call in kinds.items()}
    bytes_per_second, cached_bytes, cached_bytes_per_second = memory()
    machine = Machine(
        name=platform.node() or "machine",
        flops=2 * WIDTH**3 / product,
        bytes_per_second=bytes_per_second,
        update_bytes_per_second=update_bytes_per_second,
        kernel_seconds=chain / CHAIN,
        step_seconds=step_seconds(),
        memory_gb=round(psutil.virtual_memory().total / 2**30 / num_local, 1),
        ranks_per_host=num_local,
        overlap=1.0 if job.size == 1 else overlap_of(job),
        links=links,
        cached_bytes=cached_bytes,
        cached_bytes_per_second=cached_bytes_per_second,
    )
    return replace(machine, exposed=exposed_of(machine))


def time_of(compute: Callable[[], tf.Tensor]) -> float:
    """Seconds of a graph, the median of several runs, which all ranks begin together."""
    graph = tf.function(lambda: compute(), autograph=False).get_concrete_function()
    seconds = []
    for repeat in range(REPEATS):
        world.current().barrier(f"measure.{repeat}")
        begin = time.perf_counter()
        graph().numpy()
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds[2:])


def link_of(group: Communicator, kind: Collective, call: Callable[[Communicator, tf.Tensor, str], tf.Tensor]) -> Link:
    """The line through the times of messages, with errors counted in parts of the times.

    Each message is a tensor of its own, and all results are kept, so that large ones come from memory and not from
    caches: as in a step, which has read and written other things since.
    """
    seconds = []
    for size in SIZES:
        name = f"measure.{kind}.{group.reduces_by}.{size}"
        values = [tf.ones([size // 4]) for _ in range(IN_A_ROW)]

        def in_a_row(values=values, name=name) -> tf.Tensor:
            results: list[tf.Tensor] = []
            for number, value in enumerate(values):
                with tf.control_dependencies(results[-1:]):
                    results.append(call(group, value, f"{name}.{number}"))
            return tf.add_n([result[:1] for result in results])

        seconds.append(time_of(in_a_row) / IN_A_ROW)
    crossing = [crossing_bytes(kind, size, group.size) for size in SIZES]
    offset, slope = line(crossing, seconds)
    steps = math.ceil(math.log2(group.size))
    small = tf.ones([SIZES[0] // 4])

    def aside() -> tf.Tensor:
        made = [call(group, small, f"measure.aside.{kind}.{group.reduces_by}.{number}") for number in range(ASIDE)]
        return tf.add_n(made)

    return Link(offset / steps, 1 / slope, time_of(aside) / ASIDE / steps)


def line(x: Sequence[float], y: Sequence[float]) -> tuple[float, float]:
    """Offset and slope, neither below 0, of the line that is nearest in parts of y."""
    weights = [1 / value**2 for value in y]
    total = sum(weights)
    mean_x = sum(w * a for w, a in zip(weights, x, strict=True)) / total
    mean_y = sum(w * b for w, b in zip(weights, y, strict=True)) / total
    above = sum(w * (a - mean_x) * (b - mean_y) for w, a, b in zip(weights, x, y, strict=True))
    slope = max(above / sum(w * (a - mean_x) ** 2 for w, a in zip(weights, x, strict=True)), 1e-13)
    return max(mean_y - slope * mean_x, 1e-7), slope


def memory() -> tuple[float, float, float]:
    """Bytes a second from memory and to it; bytes that caches hold; bytes a second from caches and to them.

    A copy of more bytes than caches hold takes `slow * bytes - cached * (slow - fast)` seconds.
    """
    few, many, more = (8 * num_elements for num_elements, _ in COPIES)
    near, large, larger = (copy_seconds(*each) for each in COPIES)
    fast, slow = near / few, max((larger - large) / (more - many), larger / more)  # seconds for a byte
    cached = (slow * more - larger) / (slow - fast) if slow > fast else 0.0
    return 1 / slow, min(cached, float(many)), 1 / min(fast, slow)


def copy_seconds(num_elements: int, count: int) -> float:
    """Seconds in which a tensor is read once and another one written; the median of runs of so many copies."""
    value = tf.random.stateless_uniform((num_elements,), (1, 2))

    def copies() -> tf.Tensor:
        made = [value * (1.5 + number) for number in range(count)]
        return tf.add_n([each[:1] for each in made])

    return time_of(copies) / count


def update_time() -> float:
    """Seconds of Adam with a variable of NUM_ELEMENTS."""
    variable = keras.Variable(tf.zeros([NUM_ELEMENTS]))
    optimizer = keras.optimizers.Adam()
    optimizer.build([variable])
    gradient = tf.ones([NUM_ELEMENTS])

    def update() -> tf.Tensor:
        optimizer.apply([gradient])
        return variable.value[:1]

    return time_of(update)


def overlap_of(group: Communicator) -> float:
    """The part of a reduce-scatter's time that products which do not wait for it become longer by."""
    a = tf.random.stateless_uniform((WIDTH, WIDTH), (1, 3))
    value = tf.ones([SIZES[-1] // 4])

    def products() -> tf.Tensor:
        return functools.reduce(lambda x, _: tf.linalg.matmul(x, a), range(PRODUCTS), a[:ROWS])[:1, :1]

    def scattered(name: str) -> tf.Tensor:
        return group.reduce_scatter([value], f"measure.overlap.{name}")[0][:1]

    compute, send = time_of(products), time_of(lambda: scattered("alone"))
    both = time_of(lambda: products() + scattered("beside"))
    return min(max((both - compute) / send, 0.0), 1.0)


def exposed_of(machine: Machine) -> float:
    """The part of the shorter of computing and memory that products of few rows become longer by."""
    rows = tf.ones([FEW, WIDE])
    weights = [tf.random.stateless_uniform((WIDE, WIDE), (1, i)) for i in range(WEIGHTS)]
    seconds = time_of(lambda: functools.reduce(tf.linalg.matmul, weights, rows)[:1, :1]) / WEIGHTS
    reading = machine.memory_seconds(4 * WIDE * (WIDE + 2 * FEW), 1)
    shorter, longer = sorted((2 * FEW * WIDE**2 / machine.flops, reading))
    return min(max((seconds - longer) / shorter, 0.0), 1.0)


def step_seconds() -> float:
    """Of a step of `fit` with a model of one weight, under data parallel."""
    with DataParallel().scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
        model.compile("sgd", "mse")
    rows = tf.zeros((world.current().size, 1))
    data = tf.data.Dataset.from_tensors((rows, rows)).repeat()
    model.fit(data, steps_per_epoch=5, shuffle=False, verbose=0)
    begin = time.perf_counter()
    model.fit(data, steps_per_epoch=100, shuffle=False, verbose=0)
    return (time.perf_counter() - begin) / 100


def main() -> None:
    """Writes the file that the command line names."""
    init(seed="own")
    found = measure()
    if world.current().rank == 0:
        text = found.text()
        Path(sys.argv[1]).write_text(text) if len(sys.argv) > 1 else print(text)


if __name__ == "__main__":
    main()
