"""One of several processes that sum through shared memory, with no launcher and no Horovod between them.

shared_sum.py RANK SIZE ENDING [OFFER]

ENDING is what the last rank does at the end, while the others wait in a sum: "another" collective, one of another
"shape", or "die".
Rank 0 prints the offer by which the others find it, and each prints what its sums raised at the end.
"""

import json
import os
import signal
import sys
import time

import numpy as np
import tensorflow as tf

from keras_par.comm import shared_memory

CHUNK = 64 << 10  # numbers of four bytes
LENGTHS = [[1], [CHUNK - 1, 1, 0, CHUNK], [CHUNK + 1, 3], [0, 9 * CHUNK + 5, 7, 2 * CHUNK], [0]]
ROUNDS = 20


def values(rank: int, dtype: tf.DType, seed: int) -> list[np.ndarray]:
    """What a rank puts into a collective, which every rank can tell."""
    random = np.random.default_rng([rank, seed])
    return [(1000 * random.normal(size=length)).astype(dtype.as_numpy_dtype) for length in LENGTHS[seed]]


rank, size, ending = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
file = -1
if rank == 0:
    offer, file, _ = shared_memory.make(size)
    print(json.dumps(offer), flush=True)
    sys.stdin.readline()  # until all have come
else:
    offer = json.loads(sys.argv[4])
functions, _ = shared_memory.joined(offer, rank, size)
assert functions is not None
print("joined", flush=True)
sys.stdin.readline()
operation = tf.load_op_library(offer["library"]).keras_par_shared_sum
order = tf.Variable(0)


@tf.function
def total(*tensors):
    return operation(tensors=list(tensors), order=order.handle, collective="test.sum")


@tf.function
def total_of_unused(tensor):
    operation(tensors=[tensor], order=order.handle, collective="test.unused")
    return tensor


for seed in range(len(LENGTHS)):
    for dtype in shared_memory.DTYPES:
        expected = values(0, dtype, seed)
        for other in range(1, size):
            expected = [one + two for one, two in zip(expected, values(other, dtype, seed), strict=True)]
        for _ in range(ROUNDS):
            sums = total(*map(tf.constant, values(rank, dtype, seed)))
            for found, wanted in zip(sums, expected, strict=True):
                np.testing.assert_array_equal(found.numpy(), wanted, strict=True)
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
    operation(tensors=[tf.ones(shape)], order=order.handle, collective=name)
except tf.errors.AbortedError as error:
    print(f"after {time.monotonic() - began:.1f} s: {error.message}", flush=True)
functions.keras_par_shared_leave()
try:
    operation(tensors=[tf.ones([4])], order=order.handle, collective="test.sum")
except tf.errors.AbortedError as error:
    print(error.message, flush=True)
