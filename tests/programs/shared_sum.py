"""One of several processes that talk through shared memory, with no launcher and no Horovod between them.

shared_sum.py RANK SIZE ENDING [OFFER]

ENDING is what the last rank does at the end, while the others wait in a sum: "another" collective, one of another
"shape", or "die".
Rank 0 prints the offer by which the others find it, and each prints what its sums raised at the end.
"""

import functools
import json
import os
import signal
import sys
import time

import numpy as np
import tensorflow as tf

from keras_par.comm import native, segments, shared_memory

CHUNK = 64 << 10  # numbers of four bytes
LENGTHS = [[1], [CHUNK - 1, 1, 0, CHUNK], [CHUNK + 1, 3], [0, 9 * CHUNK + 5, 7, 2 * CHUNK], [0]]
ROUNDS = 3
REDUCERS = {"sum": np.add, "min": np.minimum, "max": np.maximum}


@functools.cache
def values(rank: int, dtype: tf.DType, seed: int) -> list[np.ndarray]:
    """What a rank puts into a collective, which every rank can tell: also numbers that are too small to be normal."""
    random = np.random.default_rng([rank, seed])
    scale = 1e-39 if seed == 2 else 1000
    return [(scale * random.normal(size=length)).astype(dtype.as_numpy_dtype) for length in LENGTHS[seed]]


@functools.cache
def reduced(dtype: tf.DType, seed: int, op: str) -> list[np.ndarray]:
    """What all ranks' values make, one rank after the other, in 32 bits where there are 16."""
    wide = np.float32 if dtype.size == 2 else dtype.as_numpy_dtype
    totals = [each.astype(wide) for each in values(0, dtype, seed)]
    for other in range(1, size):
        news = [each.astype(wide) for each in values(other, dtype, seed)]
        totals = [REDUCERS[op](total, new) for total, new in zip(totals, news, strict=True)]
    return [total.astype(dtype.as_numpy_dtype) for total in totals]


def patterns(of_rank: int, dtype: tf.DType) -> np.ndarray:
    """All numbers of 16 bits, in another order for each rank."""
    everything = np.arange(1 << 16, dtype=np.uint16).view(dtype.as_numpy_dtype)
    return np.roll(everything[~np.isnan(everything)], 7919 * of_rank)


def require_rounded(dtype: tf.DType) -> None:
    """Refuses sums of 16 bits that are not those of 32, rounded once to the nearest; a NaN is like any other."""
    [found] = total(tf.constant(patterns(rank, dtype)))
    with np.errstate(all="ignore"):
        expected = patterns(0, dtype).astype(np.float32)
        for other in range(1, size):
            expected = expected + patterns(other, dtype).astype(np.float32)
        expected = expected.astype(dtype.as_numpy_dtype)
    is_nan = np.isnan(expected)
    assert (np.isnan(found.numpy()) == is_nan).all()
    assert found.numpy()[~is_nan].tobytes() == expected[~is_nan].tobytes()
    [same] = total(tf.constant(patterns(0, dtype)), option=2)
    assert same.numpy().tobytes() == patterns(0, dtype).tobytes()


def require_narrowed(dtype: tf.DType) -> None:
    """Refuses sums of numbers of 32 bits, sent in 16, that are not those of these, rounded once."""

    def bits(of_rank: int) -> list[np.ndarray]:
        random = np.random.default_rng([of_rank, 5])
        numbers = [random.integers(0, 1 << 32, length, np.uint32).view(np.float32) for length in LENGTHS[3]]
        near = np.concatenate(
            [patterns(of_rank, dtype).astype(np.float32) * np.float32(1 + 2**-9), [np.float32(65519)]]
        )
        return [np.where(np.isnan(each), np.float32(0), each) for each in (*numbers, near)]

    with np.errstate(all="ignore"):
        of_ranks = [[as_sent(each, dtype) for each in bits(of)] for of in range(size)]
        expected = [functools.reduce(np.add, parts) for parts in zip(*of_ranks, strict=True)]
        expected = [as_sent(each, dtype) for each in expected]
    given = list(map(tf.constant, bits(rank)))
    for kind, wanted in (
        ("all_reduce", expected),
        ("reduce_scatter", [np.array_split(each, size)[rank] for each in expected]),
    ):
        found = [each.numpy() for each in call(kind, given, sent_as=dtype)]
        for one, other in zip(found, wanted, strict=True):
            is_nan = np.isnan(other)
            assert one.dtype == np.float32 and (np.isnan(one) == is_nan).all(), kind
            assert one[~is_nan].tobytes() == other[~is_nan].tobytes(), kind


def as_sent(numbers: np.ndarray, dtype: tf.DType) -> np.ndarray:
    return numbers.astype(dtype.as_numpy_dtype).astype(np.float32)


def require_equal(found, expected) -> None:
    """Refuses tensors that differ in a bit, or in type or shape."""
    for one, other in zip(found, expected, strict=True):
        one = one.numpy()
        assert one.dtype == other.dtype and one.shape == other.shape, (one.dtype, one.shape, other.dtype, other.shape)
        assert one.tobytes() == other.tobytes(), (one, other)


rank, size, ending = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
file = -1
if rank == 0:
    native.library()
    offer, file, _ = segments.make(size)
    print(json.dumps(offer), flush=True)
    sys.stdin.readline()  # until all have come
else:
    offer = json.loads(sys.argv[4])
library, ring, why = segments.joined(offer, rank, size)
assert library is not None, why
print("joined", flush=True)
sys.stdin.readline()
order = tf.Variable(0)


def call(kind: str, tensors, name: str = "test.sum", option: int = 0, sent_as: tf.DType | None = None):
    """One of the library's operations."""
    operation = getattr(library.operations, f"keras_par_shared_{kind}")
    more = {"sent_as": sent_as or tensors[0].dtype} if "reduce" in kind else {}
    results, _ = operation(
        tensors=tensors, after=0, order=order.handle, collective=name, ring=ring, option=option, **more
    )
    return results


total = tf.function(lambda *tensors, option=0: call("all_reduce", list(tensors), option=option))


@tf.function
def total_of_unused(tensor):
    call("all_reduce", [tensor], "test.unused")
    return tensor


for seed in range(len(LENGTHS)) if ending == "another" else [3]:
    for dtype in shared_memory.DTYPES if ending == "another" else [tf.float32]:
        for option, op in enumerate(shared_memory.OPS):
            expected = reduced(dtype, seed, op)
            for _ in range(ROUNDS if op == "sum" else 1):
                require_equal(total(*map(tf.constant, values(rank, dtype, seed)), option=option), expected)
        parts = call("reduce_scatter", [tf.constant(each) for each in values(rank, dtype, seed)])
        require_equal(parts, [np.array_split(each, size)[rank] for each in reduced(dtype, seed, "sum")])
        given = [tf.constant(each[: len(each) * (rank + 1) // size]) for each in values(rank, dtype, seed)]
        others = [[each[: len(each) * (one + 1) // size] for each in values(one, dtype, seed)] for one in range(size)]
        require_equal(
            call("all_gather", [*given, tf.fill([rank, 2], True)], "test.gather"),
            [
                *map(np.concatenate, zip(*others, strict=True)),
                np.full([size * (size - 1) // 2, 2], True),
            ],
        )
        for root in range(size):
            sent = call("broadcast", [tf.constant(each) for each in values(rank, dtype, seed)], "test.root", root)
            require_equal(sent, values(root, dtype, seed))
        rows = [each[: len(each) // size * size] for each in values(rank, dtype, seed)]
        for place, each in enumerate(rows):
            arrived = [np.split(values(one, dtype, seed)[place][: len(each)], size)[rank] for one in range(size)]
            require_equal([call("all_to_all", tf.constant(each), "test.exchange")], [np.concatenate(arrived)])
if ending == "another":
    require_rounded(tf.float16)
    require_rounded(tf.bfloat16)
    require_narrowed(tf.float16)
    require_narrowed(tf.bfloat16)
total_of_unused(tf.ones([3]))
print("equal", flush=True)

is_last = rank == size - 1
if is_last and ending == "die":
    time.sleep(1)
    os.kill(os.getpid(), signal.SIGKILL)
name = "test.another" if is_last and ending == "another" else "test.sum"
began = time.monotonic()
try:
    shape = [2, 2] if is_last and ending == "shape" else [4]
    call("all_reduce", [tf.ones(shape)], name)
except tf.errors.AbortedError as error:
    print(f"after {time.monotonic() - began:.1f} s: {error.message}", flush=True)
library.functions.keras_par_shared_leave(ring)
try:
    call("all_reduce", [tf.ones([4])])
except tf.errors.AbortedError as error:
    print(error.message, flush=True)
