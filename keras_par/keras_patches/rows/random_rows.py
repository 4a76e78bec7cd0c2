"""Lets each rank draw its own rows' part of the random numbers that one process would draw for the global batch."""

import inspect
import math
from typing import Any, NamedTuple

import tensorflow as tf

from keras_par.keras_patches.rows.batch_rows import BatchRows, known_sizes, rows_of_step
from keras_par.keras_patches.rows.row_dims import ALIKE, UNSURE, Rows, is_symbolic
from keras_par.sharding import step as steps

# The Philox generator makes blocks of 4 numbers of 32 bits. TensorFlow's CPU kernels give a group of elements a fixed
# run of blocks, whatever the shape: https://github.com/tensorflow/tensorflow core/kernels/random_op_cpu.h.
WORDS = 4
RESERVED = 64  # blocks for each element of a distribution that may reject what it drew, such as a truncated normal's


class Stream(NamedTuple):
    """How the elements of a draw follow one another: `group` at a time, each group in `blocks` blocks."""

    group: int
    blocks: int


def stream(bits: int, rejects: bool) -> Stream:
    """The stream of a distribution whose elements have `bits` bits, and which may reject what it drew."""
    group = WORDS * 32 // bits if bits > 32 else WORDS
    return Stream(group, RESERVED * group if rejects else 1)


def seek(first, stream: Stream):
    """For element `first` of a draw: the block at which its group begins, and how many elements come before it there.

    Works on ints and on integer tensors alike.
    """
    return first // stream.group * stream.blocks, first % stream.group


UNKNOWN = Rows((1,), is_exact=False)  # what rows are taken to be where the way to them was not followed
STRIDE = 1_000_003  # between the seeds of ranks that are told apart
PER_ROW = ("logits", "mean", "stddev", "minval", "maxval", "alpha", "beta", "counts", "probs", "lam")
OF_EACH = ("random_gamma", "random_poisson_v2")  # which draw the shape anew for each number of a parameter


def drawn(original):
    """A draw of TensorFlow's, of which a rank gets its rows' part if one number of the shape counts rows."""
    signature = inspect.signature(original)

    def replacement(*args, **kwargs):
        rows = rows_of_step()
        if rows is None:
            return original(*args, **kwargs)
        call = signature.bind(*args, **kwargs)
        call.apply_defaults()
        arguments = dict(call.arguments)
        if "shape" in arguments:
            known, sizes = rows.elements(arguments["shape"]), numbers_of(arguments["shape"])
        else:  # of values that are drawn from or shuffled
            value = tf.convert_to_tensor(arguments["logits" if "logits" in arguments else "value"])
            known, sizes = [rows.of(value), ALIKE], [*numbers_of(tf.shape(value))[:1], arguments.get("num_samples")]
        places = [dim for dim, each in enumerate(known) if isinstance(each, Rows) or each is UNSURE]
        if not places:
            say_if_ambiguous(rows, sizes if "shape" in arguments else [])
            return original(*args, **kwargs)
        if len(places) > 1 or not rows.is_reached or "value" in arguments:
            return told_apart(original, arguments)
        [dim] = places
        found = known[dim]
        parts = parts_of(original, rows, arguments, found if isinstance(found, Rows) else UNKNOWN, dim, sizes)
        result = parts[0] if len(parts) == 1 else tf.concat(parts, dim)
        if is_symbolic(result):
            rows.dims.note(result, found.at(dim) if isinstance(found, Rows) else UNSURE)
        return result

    return replacement


def dropout(original):
    """Dropout by a mask that is drawn as `drawn` says."""
    signature = inspect.signature(original)

    def replacement(*args, **kwargs):
        if rows_of_step() is None:
            return original(*args, **kwargs)
        call = signature.bind(*args, **kwargs)
        call.apply_defaults()
        given = call.arguments
        x, sizes = tf.convert_to_tensor(given["x"]), given["noise_shape"]
        if sizes is None:
            sizes = tf.shape(x)
        elif isinstance(sizes, (list, tuple, tf.TensorShape)):
            sizes = [tf.shape(x)[dim] if size is None else size for dim, size in enumerate(sizes)]

        def mask(shape, dtype):
            if "rng_alg" in given:
                return tf.random.stateless_uniform(sizes, given["seed"], dtype=dtype, alg=given["rng_alg"])
            return tf.random.uniform(sizes, dtype=dtype, seed=given["seed"])

        return tf.nn.experimental.general_dropout(x, given["rate"], mask, given["noise_shape"])

    return replacement


def moved_counter(original):
    """The counter of numbers begins where those of this rank's rows do, while they are drawn.

    That its lower word overflows is as likely as 1 in 2^40 draws of 2^24 blocks.
    """

    def replacement(seed, alg):
        key, counter, alg = original(seed, alg)
        rows = rows_of_step()
        if rows is not None and rows.blocks is not None:
            counter += tf.stack([tf.cast(rows.blocks, tf.uint64), tf.constant(0, tf.uint64)])
        return key, counter, alg

    return replacement


def parts_of(original, rows: BatchRows, arguments: dict, known: Rows, dim: int, sizes: list) -> list[tf.Tensor]:
    """This rank's rows of each run: drawn from the counter where they begin, else cut from a draw for all ranks."""
    runs = list(known.runs)
    if not known.is_exact:  # as many places as run time tells, rounded up
        times = -(-tf.cast(sizes[dim], tf.int64) // tf.cast(rows.here * sum(runs), tf.int64))
        runs = [times * run for run in runs]
    counts = [sizes[dim]] if len(runs) == 1 else [rows.here * run for run in runs]
    firsts = [rows.total * sum(runs[:place]) + rows.start * run for place, run in enumerate(runs)]
    names = () if original.__name__ in OF_EACH else PER_ROW
    per_row = [name for name in names if has_rows(arguments.get(name), dim, len(sizes))]
    if not dim and not per_row and is_counted(arguments):
        numbers = stream(8 * tf.as_dtype(arguments["dtype"]).size, rejects="truncated" in original.__name__)
        given = [arguments["shape"]] if len(runs) == 1 else [vector([count, *sizes[1:]]) for count in counts]
        return [
            counted(original, rows, arguments | {"shape": shape}, numbers, first, [count, *sizes[1:]])
            for shape, first, count in zip(given, firsts, counts, strict=True)
        ]
    total = rows.total * sum(runs)
    if not all(isinstance(number, int) for number in (total, *firsts)):
        # A stand-in for no rows may be where the last row is.
        lasts = [rows.total * sum(runs[: place + 1]) - count for place, count in enumerate(counts)]
        firsts = [tf.minimum(*(tf.cast(each, tf.int64) for each in ends)) for ends in zip(firsts, lasts, strict=True)]
    spans = list(zip(firsts, counts, strict=True))
    whole = {name: spread(tf.convert_to_tensor(arguments[name]), dim, spans, total) for name in per_row}
    if "shape" in arguments:
        whole["shape"] = tf.cast(vector([*sizes[:dim], total, *sizes[dim + 1 :]]), tf.int32)  # which all functions take
    everything = original(**arguments | whole)
    sizes = [*sizes, *numbers_of(tf.shape(everything))[len(sizes) :]]
    return [tf.slice(everything, *window(sizes, dim, *span)) for span in spans]


def counted(original, rows: BatchRows, arguments: dict, numbers: Stream, first, sizes: list) -> tf.Tensor:
    """Draws rows from number `first` on, with some before if one ends within the numbers that one counter gives."""
    rest = math.prod(sizes[1:])
    try:
        if isinstance(rest, int) and rest % numbers.group == 0:
            rows.blocks = first * seek(rest, numbers)[0]
            return original(**arguments)
        before = first % numbers.group
        rows.blocks, _ = seek((first - before) * rest, numbers)
        result = original(**arguments | {"shape": vector([before + sizes[0], *sizes[1:]])})
    finally:
        rows.blocks = None
    return tf.slice(result, *window(sizes, 0, before, sizes[0]))


def is_counted(arguments: dict) -> bool:
    """True if the numbers are Philox's as TensorFlow's kernels count them, on GPUs, too; XLA's do not."""
    step, alg = steps.current(), arguments.get("alg", "none")
    is_philox = not isinstance(alg, tf.Tensor) and alg in (None, "auto_select", "philox", 1, 3)
    return is_philox and not (step and step.compiled)


def has_rows(value: Any, dim: int, rank: int) -> bool:
    """True if an argument of a draw may have a value for each row."""
    shape = tf.TensorShape(getattr(value, "shape", ()))
    return shape.rank == rank and shape[dim] != 1


def spread(value: tf.Tensor, dim: int, spans: list[tuple], total) -> tf.Tensor:
    """A parameter of each row at the rows' places in the global batch, and 1 elsewhere."""
    sizes = numbers_of(tf.shape(value))
    parts, taken, end = [], 0, 0
    for first, count in [*spans, (total, 0)]:
        gap = [first - end if d == dim else size for d, size in enumerate(sizes)]
        parts += [tf.ones(vector(gap), value.dtype), tf.slice(value, *window(sizes, dim, taken, count))]
        taken, end = taken + count, first + count
    return tf.concat(parts, dim)


def window(sizes: list, dim: int, first, count) -> tuple[tf.Tensor, tf.Tensor]:
    """Where a slice begins and its sizes."""
    begins = [first if d == dim else 0 for d in range(len(sizes))]
    return vector(begins), vector([count if d == dim else size for d, size in enumerate(sizes)])


def told_apart(original, arguments: dict) -> tf.Tensor:
    """A draw that is another one on each rank."""
    step = steps.current()
    assert step is not None
    rank, size = step.communicator.rank, step.communicator.size
    step.say(
        "random numbers for several dims of rows, for the order of rows, or in a tf.function within the step are other "
        "ones on each rank, but not those that one process would draw"
    )
    if "seed" not in arguments:  # a generator, which moves on alike
        return original(**arguments | {"shape": vector([size, *numbers_of(arguments["shape"])])})[rank]
    if original.__name__.startswith("stateless"):
        seed = tf.convert_to_tensor(arguments["seed"])
        seed += tf.constant([0, rank * STRIDE], seed.dtype)
    else:
        seed = tf.compat.v1.get_seed(arguments["seed"])[1]
        seed = None if seed is None else seed + rank * STRIDE
    return original(**arguments | {"seed": seed})


def say_if_ambiguous(rows: BatchRows, sizes: list) -> None:
    """Says that a draw is the same on all ranks whose size is that of this rank's rows and is not known to be it."""
    if len(sizes) > 1 and isinstance(rows.here, int) and sizes[0] == rows.here > 1:
        steps.current().say(  # type: ignore[union-attr]
            "random numbers of shape %s in the step are the same on all ranks: if these are the %d rows of a rank's "
            "batch, take their number from keras.ops.shape(batch)[0], so that each rank draws its own",
            [size if isinstance(size, int) else None for size in sizes],
            rows.here,
        )


def numbers_of(shape: Any) -> list:
    """The numbers of a shape: ints where they are known, else int64 tensors."""
    if isinstance(shape, (list, tuple)):
        return [tf.cast(size, tf.int64) if isinstance(size, tf.Tensor) else int(size) for size in shape]
    known = known_sizes(shape) if is_symbolic(shape) else [int(size) for size in shape]
    return [tf.cast(shape[dim], tf.int64) if size is None else size for dim, size in enumerate(known)]


def vector(sizes: list) -> tf.Tensor:
    """A shape as a tensor."""
    if all(isinstance(size, int) for size in sizes):
        return tf.constant(sizes, tf.int64)
    return tf.stack([tf.cast(size, tf.int64) for size in sizes])
