"""Lets each rank draw its own rows' part of the random numbers that one process would draw for the global batch."""

import importlib
import inspect
import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import (
    gen_random_ops,
    gen_stateless_random_ops,
    gen_stateless_random_ops_v2,
)

from keras_par.keras_patches.rows import row_rules  # noqa: F401 - fills the table of rules
from keras_par.keras_patches.rows.batch_rows import BatchRows, known_sizes
from keras_par.keras_patches.rows.row_dims import ALIKE, UNSURE, Rows, is_symbolic
from keras_par.keras_patches.rows.row_shapes import rows_of_step
from keras_par.plan.counters import Stream, seek, stream
from keras_par.sharding import step as steps

UNKNOWN = Rows((1,), is_exact=False)  # what rows are taken to be where the way to them was not followed
STRIDE = 1_000_003  # between the seeds of ranks that are told apart

# Operations that are drawn for the global batch and cut, with the arguments that may have a value for each row.
WHOLE: dict[Any, dict[str, tuple[str, ...]]] = {
    gen_stateless_random_ops_v2: {"stateless_random_gamma_v3": ("alpha",)},
    gen_stateless_random_ops: {
        "stateless_multinomial": ("logits",),
        "stateless_random_binomial": ("counts", "probs"),
        "stateless_random_poisson": ("lam",),
    },
    gen_random_ops: {
        "multinomial": ("logits",),
        "random_standard_normal": (),
        "random_uniform": (),
        "random_uniform_int": (),
        "truncated_normal": (),
        "random_gamma": (),
        "random_poisson_v2": (),
    },
}


def counted(original):
    """A rank's rows of a draw whose numbers are counted; no other row's are drawn."""

    def draw(rows: BatchRows, arguments: dict, known: Rows, dim: int):
        if dim or not can_seek(arguments["alg"]):
            return cut(original, rows, arguments, known, dim, ())
        bounds = arguments.get("minval")
        dtype = arguments["dtype"] if bounds is None else tf.convert_to_tensor(bounds).dtype
        numbers = stream(8 * tf.as_dtype(dtype).size, rejects="truncated" in original.__name__)
        return from_counter(original, rows, arguments, known, numbers)

    return drawn_by_rows(original, draw)


def drawn_whole(original):
    """A rank's rows of a draw that is made for the global batch, and cut."""
    module = importlib.import_module(original.__module__)
    parameters = WHOLE[module][original.__name__]

    def draw(rows: BatchRows, arguments: dict, known: Rows, dim: int):
        return cut(original, rows, arguments, known, dim, parameters)

    return drawn_by_rows(original, draw)


def drawn_by_rows(original: Callable, draw: Callable) -> Callable:
    """`original`, an operation that draws, for shapes of which one number counts rows by `draw`."""
    signature = inspect.signature(original)

    def replacement(*args, **kwargs):
        rows = rows_of_step()
        if rows is None:
            return original(*args, **kwargs)
        call = signature.bind(*args, **kwargs)
        call.apply_defaults()
        arguments = dict(call.arguments)
        known = [rows.of(arguments["logits"]), ALIKE] if "logits" in arguments else rows.elements(arguments["shape"])
        places = [dim for dim, each in enumerate(known) if isinstance(each, Rows) or each is UNSURE]
        if not places:
            say_if_ambiguous(rows, arguments)
            return original(*args, **kwargs)
        if len(places) > 1 or not rows.is_reached:
            return original(**apart(arguments))
        [dim] = places
        found = known[dim]
        result = draw(rows, arguments, found if isinstance(found, Rows) else UNKNOWN, dim)
        if is_symbolic(result):
            rows.dims.note(result, found.at(dim) if isinstance(found, Rows) else UNSURE)
        return result

    return replacement


def shuffled(original):
    """Each rank shuffles its own rows, in another order than the others."""

    def replacement(value, seed=0, seed2=0, name=None):
        rows = rows_of_step()
        if rows is None or not (isinstance(rows.of(value), Rows) or rows.of(value) is UNSURE):
            return original(value, seed, seed2, name)
        return original(**apart({"value": value, "seed": seed, "seed2": seed2, "name": name}))

    return replacement


def can_seek(alg: Any) -> bool:
    """True if the numbers are Philox's as TensorFlow's kernels count them, on GPUs, too; XLA's do not."""
    step = steps.current()
    is_philox = not isinstance(alg, tf.Tensor) and int(alg) in (1, 3)
    return is_philox and not (step and step.compiled)


def from_counter(original, rows: BatchRows, arguments: dict, known: Rows, numbers: Stream) -> tf.Tensor:
    """Draws each run of rows from the counter at which it begins."""
    shape = arguments["shape"]
    sizes = sizes_of(shape)
    rest = product(sizes[1:])
    parts, before = [], 0
    for run in runs_of(rows, known, sizes[0]):
        count = sizes[0] if len(known.runs) < 2 else rows.here * run
        places = shape if len(known.runs) < 2 else vector([count, *sizes[1:]])
        counter, skipped = begin(rows, arguments["counter"], before, run, rest, numbers)
        before += run
        if is_zero(skipped):
            parts.append(original(**arguments | {"shape": places, "counter": counter}))
        else:
            flat = original(**arguments | {"shape": vector([count * rest + skipped]), "counter": counter})
            parts.append(tf.reshape(flat[skipped:], places))
    return parts[0] if len(parts) == 1 else tf.concat(parts, 0)


def begin(rows: BatchRows, counter: tf.Tensor, before, run, rest, numbers: Stream) -> tuple[tf.Tensor, Any]:
    """The counter at which this rank's rows of a run begin, and how many numbers come before them there."""
    if is_zero(before) and isinstance(run, int) and isinstance(rest, int) and run * rest % numbers.group == 0:
        blocks = run * rest // numbers.group * numbers.blocks
        if isinstance(rows.start, int):
            return advanced(counter, rows.start * blocks), 0
        return counter + rows.start_block * tf.constant(blocks, tf.uint64), 0
    places = rows.total * before + rows.start * run
    if isinstance(rest, int) and rest % numbers.group == 0:
        return advanced(counter, places * (rest // numbers.group * numbers.blocks)), 0
    blocks, skipped = seek(places * rest, numbers)
    return advanced(counter, blocks), skipped


def advanced(counter: tf.Tensor, blocks) -> tf.Tensor:
    """A counter of two words moved on; that its lower word overflows is as likely as 1 in 2^40 draws of 2^24 blocks."""
    if is_zero(blocks):
        return counter
    return counter + tf.stack([tf.cast(blocks, tf.uint64), tf.constant(0, tf.uint64)])


def cut(original, rows: BatchRows, arguments: dict, known: Rows, dim: int, parameters: tuple[str, ...]) -> tf.Tensor:
    """Draws for the rows of all ranks and takes this rank's."""
    if "logits" in arguments:
        logits = tf.convert_to_tensor(arguments["logits"])
        sizes = [*sizes_of(tf.shape(logits))[:1], arguments["num_samples"]]
    else:
        sizes = sizes_of(arguments["shape"])
    runs = runs_of(rows, known, sizes[dim])
    spans = spans_of(rows, runs, sizes[dim])
    total = rows.total * sum(runs)
    changed = dict(arguments)
    if "shape" in arguments:
        changed["shape"] = vector([*sizes[:dim], total, *sizes[dim + 1 :]])
    for name in parameters:
        value = tf.convert_to_tensor(arguments[name])
        if value.shape.rank == len(sizes) and value.shape[dim] != 1:
            changed[name] = spread(value, dim, spans, total)
    everything = original(**changed)
    sizes += sizes_of(tf.shape(everything))[len(sizes) :]  # where a draw is made for each of its parameters
    parts = [tf.slice(everything, *window(sizes, dim, first, count)) for first, count in spans]
    return parts[0] if len(parts) == 1 else tf.concat(parts, dim)


def spans_of(rows: BatchRows, runs: list, size) -> list[tuple]:
    """Where this rank's rows of each run begin in the global draw, and how many places they have.

    A stand-in for no rows may be where the last row is.
    """
    found, before = [], 0
    for run in runs:
        count = size if len(runs) == 1 else rows.here * run
        first, last = rows.total * before + rows.start * run, rows.total * (before + run) - count
        numbers = isinstance(first, int) and isinstance(last, int)
        found.append((first if numbers else tf.minimum(as_int64(first), as_int64(last)), count))
        before += run
    return found


def window(sizes: list, dim: int, first, count) -> tuple[Any, Any]:
    """Where a slice begins and its sizes."""
    return vector([first if d == dim else 0 for d in range(len(sizes))]), vector(
        [count if d == dim else size for d, size in enumerate(sizes)]
    )


def spread(value: tf.Tensor, dim: int, spans: list[tuple], total) -> tf.Tensor:
    """A parameter of each row at the rows' places in the global batch, and 1 elsewhere."""
    parts, taken, end = [], 0, 0
    for first, count in spans:
        sizes = sizes_of(tf.shape(value))
        own = tf.slice(value, *window(sizes, dim, taken, count))
        parts += [ones(value, dim, first - end), own]
        taken, end = taken + count, first + count
    return tf.concat([*parts, ones(value, dim, total - end)], dim)


def ones(like: tf.Tensor, dim: int, count) -> tf.Tensor:
    sizes = sizes_of(tf.shape(like))
    return tf.ones(vector([count if d == dim else size for d, size in enumerate(sizes)]), like.dtype)


def skipping_all_rows(original):
    """A generator of TensorFlow's moves on by what one process would draw."""

    def replacement(self, shape):
        rows = rows_of_step()
        known = [] if rows is None else rows.elements(shape)
        places = [dim for dim, each in enumerate(known) if isinstance(each, Rows) or each is UNSURE]
        if rows is None or len(places) != 1 or not rows.is_reached:
            return original(self, shape)
        [dim] = places
        sizes, found = sizes_of(shape), known[dim]
        runs = runs_of(rows, found if isinstance(found, Rows) else UNKNOWN, sizes[dim])
        return original(self, vector([*sizes[:dim], rows.total * sum(runs), *sizes[dim + 1 :]]))

    return replacement


def apart(arguments: dict) -> dict:
    """The arguments of a draw that is to be another one on each rank."""
    step = steps.current()
    assert step is not None
    rank = step.communicator.rank
    step.say(
        "random numbers for several dims of rows, for the order of rows, or in a tf.function within the step are other "
        "ones on each rank, but not those that one process would draw"
    )
    if "counter" in arguments:
        words = tf.convert_to_tensor(arguments["counter"])
        own = [0, rank] if words.shape[0] == 2 else [rank * 2**40]
        return arguments | {"counter": words + tf.constant(own, tf.uint64)}
    if isinstance(arguments["seed"], int):
        is_set = arguments["seed"] or arguments["seed2"]
        return arguments | {"seed2": arguments["seed2"] + rank * STRIDE} if is_set else arguments
    seed = tf.convert_to_tensor(arguments["seed"])
    return arguments | {"seed": seed + tf.constant([0, rank * STRIDE], seed.dtype)}


def say_if_ambiguous(rows: BatchRows, arguments: dict) -> None:
    """Says that a draw is the same on all ranks whose size is that of this rank's rows and is not known to be it."""
    shape = arguments.get("shape")
    sizes = [] if shape is None else sizes_of(shape)
    if len(sizes) > 1 and isinstance(rows.here, int) and sizes[0] == rows.here > 1:
        steps.current().say(  # type: ignore[union-attr]
            "random numbers of shape %s in the step are the same on all ranks: if these are the %d rows of a rank's "
            "batch, take their number from keras.ops.shape(batch)[0], so that each rank draws its own",
            [size if isinstance(size, int) else None for size in sizes],
            rows.here,
        )


def runs_of(rows: BatchRows, known: Rows, size) -> list:
    """The places of a row in each run; where that is not known, as many as run time tells, rounded up."""
    if known.is_exact:
        return list(known.runs)
    times = -(-as_int64(size) // as_int64(rows.here * sum(known.runs)))
    return [times * run for run in known.runs]


def sizes_of(shape: Any) -> list:
    """The numbers of a shape: ints where they are known, else int64 tensors."""
    if isinstance(shape, (list, tuple)):
        return [as_int64(size) if isinstance(size, tf.Tensor) else int(size) for size in shape]
    known = known_sizes(shape) if is_symbolic(shape) else [int(size) for size in shape]
    return [as_int64(shape[dim]) if size is None else int(size) for dim, size in enumerate(known)]


def vector(sizes: list) -> tf.Tensor:
    """A shape as a tensor."""
    if all(isinstance(size, int) for size in sizes):
        return tf.constant(sizes, tf.int64)
    return tf.stack([tf.cast(size, tf.int64) for size in sizes])


def product(sizes: list):
    return math.prod(size for size in sizes if isinstance(size, int)) * math.prod(
        size for size in sizes if not isinstance(size, int)
    )


def as_int64(size) -> tf.Tensor:
    return tf.cast(size, tf.int64)


def is_zero(number) -> bool:
    return isinstance(number, int) and number == 0
