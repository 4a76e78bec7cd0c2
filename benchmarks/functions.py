"""Measures how long functions take, in the floating-point operations that products do meanwhile.

    python -m benchmarks functions

`keras_par/plan/operation_cost.py` has the figures. A function is called forward, and forward and backward, for eight
tensors of 1 MB that lie in caches. From its time is taken that of ReLU, which computes nothing to speak of: the cost
model has a time of its own for bytes that are read and written, and adds the two where `exposed` is 1, as on this
machine. The table has medians over rounds in which the functions take turns.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

from benchmarks.jobs import threads

ROWS, WIDTH, COUNT = 1024, 256, 8
LEAST = 10  # operations an element that are worth a line
NAMES = {
    "nn": "relu elu selu celu sigmoid silu softplus log_sigmoid softmax log_softmax tanh",
    "numpy": "exp expm1 log log1p sin cos sqrt",
    "math": "erf rsqrt",
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15, help="in which the functions take turns (%(default)s)")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    args = parser.parse_args()
    threads(1)
    seconds = measured(graphs(), args.rounds)
    speed = 2 * ROWS**3 / seconds.pop("product")[0]
    figures = [counted(name, seconds[name], seconds["nn.relu"], speed) for name in sorted(seconds)]
    show(figures, speed)
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1))


def functions():
    """The functions by their names in the backend, each of one tensor with values between 0.1 and 1."""
    import keras
    from keras import ops

    labels = ops.zeros((ROWS,), "int32")
    one_hot = ops.one_hot(labels, WIDTH)
    found = {f"{module}.{name}": getattr(ops, name) for module, names in NAMES.items() for name in names.split()}
    found["nn.gelu"] = keras.activations.gelu
    found["math.logsumexp"] = lambda x: ops.logsumexp(x, axis=-1, keepdims=True)
    found["nn.sparse_categorical_crossentropy"] = lambda x: ops.sparse_categorical_crossentropy(labels, x, True)
    found["nn.categorical_crossentropy"] = lambda x: ops.categorical_crossentropy(one_hot, x, True)
    found["nn.binary_crossentropy"] = lambda x: ops.binary_crossentropy(one_hot, x, True)
    return found


def graphs():
    """For each function its graphs forward, and forward and backward; and that of a product, in the place of both."""
    import tensorflow as tf

    inputs = [tf.random.stateless_uniform((ROWS, WIDTH), (1, seed), 0.1) for seed in range(COUNT)]
    square = tf.random.stateless_uniform((ROWS, ROWS), (1, COUNT))

    def first(values):
        return tf.add_n([tf.reshape(value, [-1])[:1] for value in values])

    def both(call, x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = call(x)
        return tape.gradient(y, x, output_gradients=y * 0.5)

    def graph(call):
        return tf.function(lambda: first([call(x) for x in inputs]), autograph=False).get_concrete_function()

    found = {name: (graph(call), graph(lambda x, call=call: both(call, x))) for name, call in functions().items()}
    product = tf.function(lambda: first([square @ square]), autograph=False).get_concrete_function()
    return found | {"product": (product, product)}


def measured(pairs, rounds):
    """Seconds of both graphs of each function."""
    times = {name: ([], []) for name in pairs}
    for number in range(-2, rounds):
        for name, pair in pairs.items():
            for graph, seconds in zip(pair, times[name], strict=True):
                begin = time.perf_counter()
                graph().numpy()
                if number >= 0:
                    seconds.append(time.perf_counter() - begin)
    return {name: [statistics.median(seconds) for seconds in pair] for name, pair in times.items()}


def counted(name, seconds, relu, speed):
    """Of a function and an element nanoseconds, and operations of a product beyond a ReLU's; [forward, backward]."""
    elements = COUNT * ROWS * WIDTH
    taken = [seconds[0], seconds[1] - seconds[0]]
    moved = [relu[0], relu[1] - relu[0]]
    operations = [max(own - other, 0) * speed / elements for own, other in zip(taken, moved, strict=True)]
    return {"function": name, "ns": [part / elements * 1e9 for part in taken], "operations": operations}


def show(figures, speed):
    from rich.console import Console
    from rich.table import Table

    columns = "function", "ns forward", "ns backward", "operations forward", "backward"
    table = Table(*columns, title=f"{speed:.3g} FLOP/s")
    for row in figures:
        if max(row["operations"]) >= LEAST:
            nanoseconds = [f"{part:.2f}" for part in row["ns"]]
            table.add_row(row["function"], *nanoseconds, *(f"{count:.0f}" for count in row["operations"]))
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
