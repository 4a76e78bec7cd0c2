"""What every communicator promises, and which of them a rank looks at; a breach is told in a few words."""

from collections.abc import Callable, Iterator
from itertools import product

import numpy as np
import tensorflow as tf

from keras_par.comm.communicator import COLLECTIVES
from keras_par.plan.layout import part_of

DTYPES = (tf.float32, tf.float64, tf.bfloat16, tf.int32, tf.int64)
NUMPY_OPS = {"sum": np.sum, "mean": np.mean, "min": np.min, "max": np.max}


def breaches(communicator, name: str, real: bool = True) -> list[str]:
    """What the communicator of this rank gives and should not, in the order found; all ranks must call it alike.

    Args:
        communicator: of any kind, over at least one rank.
        name: the first part of the collectives' names.
        real: False if it sends nothing, so that types and shapes are right and values are not.
    """
    name = name.replace(" ", "_")
    found = [*of_itself(communicator)]
    for way in ("eagerly", "in a function"):
        run: Callable = tf.function(autograph=False) if way == "in a function" else lambda function: function
        for what, make, expected in collectives(communicator, f"{name}.{way.split()[-1]}"):
            results = run(call(make))()
            found += [f"{what} {way}: {each}" for each in differences(results, expected, real)]
    if real:
        found += of_gradients(communicator, f"{name}.gradient")
    try:
        found += of_objects(communicator, f"{name}.object", real)
    except ValueError as error:  # what came back is no JSON
        found.append(f"all_gather_object: {error!r}")
    return found


def call(make: Callable[[], list]) -> Callable[[], list]:
    """`make` without its defaults, which tf.function would take for inputs."""
    return lambda: make()


def of_itself(communicator) -> Iterator[str]:
    """What it says of itself."""
    rank, size, ranks = communicator.rank, communicator.size, communicator.ranks
    if not 0 <= rank < size or len(ranks) != size or list(ranks) != sorted(set(ranks)):
        yield f"rank {rank} of {size} among {ranks}"
    if not 0 <= communicator.local_rank < communicator.local_size:
        yield f"local rank {communicator.local_rank} of {communicator.local_size}"
    if communicator.routed_by("auto").size != size or communicator.routed_by("horovod").size != size:
        yield "another size through another way"
    for kind in COLLECTIVES:
        if communicator.route(kind, [tf.zeros([2])]) not in ("engine", "shared_memory", "two_levels", None):
            yield f"an unknown route for {kind}"


def given(rank: int, shape: tuple[int, ...], dtype: tf.DType, offset: int = 0) -> np.ndarray:
    """What a rank gives: small whole numbers, that all types hold, and no two ranks' are alike."""
    numbers = np.arange(np.prod(shape)).reshape(shape) % 7 + 8 * (rank + 1) + offset
    return np.asarray(numbers.astype(dtype.as_numpy_dtype))


def collectives(communicator, name: str) -> Iterator[tuple[str, Callable[[], list], list[np.ndarray]]]:
    """Each collective's name, a function that calls it, and what it must return on this rank."""
    rank, size = communicator.rank, communicator.size
    for op, dtype in product(NUMPY_OPS, DTYPES):
        if op == "mean" and not dtype.is_floating:
            continue
        shapes = [(3, 2), (5,), ()]
        own = [given(rank, shape, dtype) for shape in shapes]
        of_all = [np.stack([given(each, shape, dtype).astype("float64") for each in range(size)]) for shape in shapes]
        yield (
            f"all_reduce of {dtype.name} by {op}",
            lambda own=own, op=op, dtype=dtype: communicator.all_reduce(tensors(own), f"{name}.{op}.{dtype.name}", op),
            [NUMPY_OPS[op](each, axis=0).astype(dtype.as_numpy_dtype) for each in of_all],
        )
    for dtype, half in product((tf.float32, tf.float64), (tf.float16, tf.bfloat16)):
        own = given(rank, (2 * size, 3), dtype) + 2.0**-10  # which no half of such a number has room for
        everywhere = [given(each, (2 * size, 3), dtype) for each in range(size)]
        total = own if size == 1 else np.sum(everywhere, axis=0)  # one rank sends nothing
        sent = f"{dtype.name} sent as {half.name}"
        yield (
            f"all_reduce of {sent}",
            lambda own=own, half=half, sent=sent: communicator.all_reduce(
                tensors([own]), f"{name}.{sent.replace(' ', '.')}", sent_as=half
            ),
            [total],
        )
        yield (
            f"reduce_scatter of {sent}",
            lambda own=own, half=half, sent=sent: communicator.reduce_scatter(
                tensors([own]), f"{name}.scatter.{sent.replace(' ', '.')}", sent_as=half
            ),
            [total[2 * rank : 2 * rank + 2]],
        )
    for dtype in DTYPES:
        lengths = [each % 3 for each in range(size)]  # that of rank 0 is none
        rows = [given(each, (lengths[each], 2), dtype) for each in range(size)]
        yield (
            f"all_gather of {dtype.name}",
            lambda own=rows[rank], dtype=dtype: [communicator.all_gather(*tensors([own]), f"{name}.{dtype.name}")],
            [np.concatenate(rows)],
        )
        if dtype != tf.bfloat16:
            even = [[given(each, (2, 3), dtype, i) for i in range(2)] for each in range(size)]
            yield (
                f"all_gather_equal of {dtype.name}",
                lambda own=even[rank], dtype=dtype: communicator.all_gather_equal(
                    tensors(own), f"{name}.equal.{dtype.name}"
                ),
                [np.concatenate(parts) for parts in zip(*even, strict=True)],
            )
        roots = [given(size - 1, shape, dtype) for shape in ((2, 2), (3,))]
        if dtype != tf.bfloat16:
            yield (
                f"broadcast of {dtype.name}",
                lambda dtype=dtype: communicator.broadcast(
                    tensors([given(rank, shape, dtype) for shape in ((2, 2), (3,))]),
                    f"{name}.root.{dtype.name}",
                    size - 1,
                ),
                roots,
            )
    whole = [given(each, (2 * size, 3), tf.float32) for each in range(size)]
    own_part = slice(2 * rank, 2 * rank + 2)
    yield (
        "all_to_all",
        lambda: [communicator.all_to_all(*tensors([whole[rank]]), f"{name}.to_all")],
        [np.concatenate([each[own_part] for each in whole])],
    )
    yield (
        "reduce_scatter",
        lambda: communicator.reduce_scatter(tensors([whole[rank]]), f"{name}.scatter"),
        [np.sum(whole, axis=0)[own_part]],
    )
    pair = [[given(each, (2, 3), dtype) for dtype in (tf.int32, tf.float32)] for each in range(size)]
    yield (
        "all_gather_equal of two dtypes of one length",
        lambda: communicator.all_gather_equal(tensors(pair[rank]), f"{name}.equal.two"),
        [np.concatenate(parts) for parts in zip(*pair, strict=True)],
    )
    # Rows that ranks divide unevenly, and fewer rows than ranks.
    uneven = [[given(each, (rows, 3), tf.float32) for rows in (2 * size + 1, max(1, size - 1))] for each in range(size)]
    yield (
        "reduce_scatter of uneven rows",
        lambda: communicator.reduce_scatter(tensors(uneven[rank]), f"{name}.scatter.uneven"),
        [np.sum(each, axis=0)[part_of(len(each[0]), size, rank)] for each in zip(*uneven, strict=True)],
    )


def tensors(arrays) -> list[tf.Tensor]:
    """The arrays as tensors; tf.constant takes no bfloat16 without dims."""
    return [tf.cast(tf.constant(array.astype("float64")), array.dtype) for array in arrays]


def differences(results: list, expected: list[np.ndarray], real: bool) -> Iterator[str]:
    if len(results) != len(expected):
        yield f"{len(results)} tensors rather than {len(expected)}"
        return
    for result, wanted in zip(results, expected, strict=True):
        if result is None:
            yield "nothing"
            continue
        array = np.asarray(result.numpy())
        if array.dtype != wanted.dtype:
            yield f"{array.dtype} rather than {wanted.dtype}"
        elif real and (array.shape != wanted.shape or not np.array_equal(array, wanted)):
            yield f"{array.tolist()} rather than {wanted.tolist()}"
        elif array.shape[1:] != wanted.shape[1:] or len(array.shape) != len(wanted.shape):
            yield f"shape {array.shape} rather than {wanted.shape}"


def of_gradients(communicator, name: str) -> list[str]:
    """The gradient of a sum over ranks is the sum of the upstream gradients."""

    @tf.function(autograph=False)
    def step():
        x = tf.constant(given(communicator.rank, (4,), tf.float32))
        with tf.GradientTape() as tape:
            tape.watch(x)
            [total] = communicator.all_reduce([x], name)
            loss = (communicator.rank + 1.0) * tf.reduce_sum(total)
        return [tape.gradient(loss, x)]

    expected = np.full(4, sum(range(1, communicator.size + 1)), "float32")
    return [f"gradient of all_reduce: {each}" for each in differences(step(), [expected], True)]


def of_objects(communicator, name: str, real: bool) -> Iterator[str]:
    """Objects, agreement and barriers, which are eager."""
    rank, size = communicator.rank, communicator.size
    values = communicator.all_gather_object({"rank": rank}, f"{name}.all")
    if len(values) != size or (real and values != [{"rank": each} for each in range(size)]):
        yield f"all_gather_object: {values}"
    if communicator.all_agree(True, f"{name}.true") is not True:
        yield "all_agree: not all do"
    if real and communicator.all_agree(rank != size - 1, f"{name}.false") is not False:
        yield "all_agree: all do"
    communicator.barrier(f"{name}.barrier")
