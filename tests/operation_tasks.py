"""Every function of Keras's backend, with a rule or without, on tensors and variables that two ranks divide."""

import functools
import importlib
import inspect
import itertools
import types
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

X = tf.constant(np.random.default_rng(0).uniform(0.1, 0.9, (4, 4)).astype("float32"))
WHOLE_NUMBERS = tf.constant(np.arange(1, 17).reshape(4, 4) % 5 + 1, tf.int32)
# Arguments by the names of parameters that have no default.
ARGUMENTS: dict[str, Any] = {"M": 4, "N": 4, "k": 2, "n": 2, "num": 2, "num_classes": 4, "num_samples": 2, "q": 0.5}
ARGUMENTS |= {"axes": 1, "axis": 0, "axis1": 0, "axis2": 1, "source": 0, "destination": 1, "kth": 1, "shift": 1}
ARGUMENTS |= {"minval": 0.0, "maxval": 1.0, "x_min": 0.2, "x_max": 0.8, "fill_value": 1.0, "start": 0, "stop": 4}
ARGUMENTS |= {"shape": (2, 8), "pad_width": ((1, 1), (1, 1)), "repeats": 2, "reps": (2, 1), "subscripts": "ij->i"}
ARGUMENTS |= {"fft_length": 4, "sequence_length": 2, "sequence_stride": 2, "indices_or_sections": 2}
ARGUMENTS |= {
    "bins": tf.constant([0.0, 0.5, 1.0]),
    "condition": tf.constant([True, False, True, False]),
    "fp": tf.constant([0.0, 5.0, 1.0]),
    "func": lambda x: x,
    "indices": tf.constant([0, 1]),
    "segment_ids": tf.constant([0, 0, 1, 1]),
    "xp": tf.constant([0.0, 0.5, 1.0]),
}
LISTS = ("arrays", "xs", "operands")
# Calls of those to which these arguments do not fit; what is sharded comes first.
CALLS: dict[str, Callable[[Callable, Any], Any]] = {
    "core.random_seed_dtype": lambda f, x: f(),
    "core.scatter": lambda f, x: f(tf.constant([[0], [2]]), x[:2], (4, 4)),
    "core.scatter_update": lambda f, x: f(x, tf.constant([[0], [2]]), x[:2]),
    "core.slice": lambda f, x: f(x, (1, 1), (2, 2)),
    "core.slice_update": lambda f, x: [
        f(x, (1, 1), x[:2, :2]),
        f(x, (0, tf.constant(1)), x[:, :2]),
        f(x, (1, 0), x[:2]),
        f(X, (1, 0), x[2:] + 1),
        f(x, tf.constant((1, 0)), X[:2]),
    ],
    "numpy.take_along_axis": lambda f, x: [
        f(x, tf.constant([[1], [0], [3], [2]]), 1),
        f(x, tf.constant([[2, 2, 1, 0]]), 0),
        f(x, tf.constant([[2], [0], [1]]), 0),
        f(x, tf.constant([3, 0, 5]), None),
    ],
    "core.switch": lambda f, x: f(0, [lambda value: value, lambda value: -value], x),
    "linalg.cholesky": lambda f, x: f(keras.ops.matmul(x, keras.ops.transpose(x)) + tf.eye(4)),
    "linalg.cholesky_inverse": lambda f, x: f(x + 4 * tf.eye(4)),
    "linalg.jvp": lambda f, x: f(lambda value: value * 2, (tf.convert_to_tensor(x),), (tf.convert_to_tensor(x),)),
    "math.fft": lambda f, x: f((x, x)),
    "math.fft2": lambda f, x: f((x, x)),
    "math.ifft2": lambda f, x: f((x, x)),
    "math.irfft": lambda f, x: f((x, x)),
    "math.istft": lambda f, x: f((x[:, :3], x[:, :3]), 4, 2, 4),
    "math.in_top_k": lambda f, x: f(tf.constant([0, 1, 2, 3]), x, 2),
    "core.cast": lambda f, x: f(x, "float64"),
    "nn.average_pool": lambda f, x: f(image(x), 2),
    "nn.batch_normalization": lambda f, x: f(x, X[0], X[1], 0),
    "nn.binary_crossentropy": lambda f, x: f(1 - X, x),
    "nn.categorical_crossentropy": lambda f, x: [
        f(X / 2, x, from_logits=True),
        f(X / 2, keras.ops.softmax(x * 60)),  # of which probabilities are 0 and 1
    ],
    "nn.conv": lambda f, x: f(image(x), tf.ones([2, 2, 4, 2])),
    "nn.conv_transpose": lambda f, x: f(image(x), tf.ones([2, 2, 3, 4]), (2, 2)),
    "nn.depthwise_conv": lambda f, x: f(image(x), tf.ones([2, 2, 4, 1])),
    "nn.dot_product_attention": lambda f, x: f(image(x), image(X), image(X)),
    "nn.max_pool": lambda f, x: f(image(x), 2),
    "nn.moments": lambda f, x: [f(x, [1]), f(keras.ops.cast(1000 * x, "float16"), [1])],
    "nn.sparse_categorical_crossentropy": lambda f, x: [
        f(tf.constant([0, 3, 2, 1]), x, from_logits=True),
        f(tf.constant([0, 3, 2, 1]), keras.ops.softmax(x * 60)),
    ],
    "numpy.argmax": lambda f, x: [f(x, -1), f(0 * x * [-1.0, -1.0, 1.0, 1.0], -1)],  # of zeros with a sign
    "numpy.bitwise_and": lambda f, x: f(keras.ops.cast(x * 10, "int32"), WHOLE_NUMBERS),
    "numpy.bitwise_invert": lambda f, x: f(keras.ops.cast(x * 10, "int32")),
    "numpy.bitwise_left_shift": lambda f, x: f(WHOLE_NUMBERS, keras.ops.cast(x * 10, "int32")),
    "numpy.reshape": lambda f, x: f(x, (2, 2, 4)),
    "numpy.add": lambda f, x: f(x, [0.5, 2.0, 1.0, 3.0]),
    "numpy.clip": lambda f, x: f(x, [0.2, 0.3, 0.4, 0.5], 0.8),
    "numpy.multiply": lambda f, x: f(x, [1, 2, 3, 4]),
    "numpy.concatenate": lambda f, x: f([x, X, x], -1),
    "numpy.einsum": lambda f, x: f("ij,kj->ik", x, X),
    "numpy.expand_dims": lambda f, x: f(x, (-1, 0)),
    "numpy.moveaxis": lambda f, x: f(image(x), (0, -1), (2, 0)),
    "numpy.split": lambda f, x: f(x, [1, 3], -1),
    "numpy.subtract": lambda f, x: [f(x, 0.5), 1 - x, 2 / x, X - x, X @ x, x @ X, 2**x, x // 0.3, 1 % x, x >= 0.5, -x],
    "numpy.swapaxes": lambda f, x: f(image(x), 1, -1),
    "numpy.transpose": lambda f, x: f(image(x), (3, 0, 2, 1)),
    "numpy.squeeze": lambda f, x: f(image(x), 0),
    "numpy.stack": lambda f, x: f([x, X], 1),
    "numpy.where": lambda f, x: f(X > 0.5, x, 1 - X),
    "nn.adaptive_average_pool": lambda f, x: f(image(x), 2),
    "nn.adaptive_max_pool": lambda f, x: f(image(x), 2),
    "nn.ctc_decode": lambda f, x: f(keras.ops.reshape(x, (1, 4, 4)), tf.constant([4])),
    "nn.ctc_loss": lambda f, x: f(
        tf.constant([[1, 2]]), keras.ops.reshape(x, (1, 4, 4)), tf.constant([2]), tf.constant([4])
    ),
    "nn.depth_to_space": lambda f, x: f(image(x), 2),
    "nn.fold": lambda f, x: f(keras.ops.reshape(x, (1, 4, 4)), (4, 4), 2, stride=2),
    "nn.separable_conv": lambda f, x: f(image(x), tf.ones([1, 1, 4, 1]), tf.ones([1, 1, 4, 2])),
    "nn.space_to_depth": lambda f, x: f(image(x), 2),
    "nn.unfold": lambda f, x: f(image(x), 2),
    "numpy.argpartition": lambda f, x: f(x, 1),
    "numpy.bartlett": lambda f, x: f(5),
    "numpy.blackman": lambda f, x: f(5),
    "numpy.broadcast_to": lambda f, x: f(x, (2, 4, 4)),
    "numpy.correlate": lambda f, x: f(x[0], x[1]),
    "numpy.cross": lambda f, x: f(x[:, :3], x[:, :3]),
    "numpy.dsplit": lambda f, x: f(keras.ops.reshape(x, (2, 2, 4)), 2),
    "numpy.gcd": lambda f, x: f(keras.ops.cast(x * 10, "int32"), WHOLE_NUMBERS),
    "numpy.lcm": lambda f, x: f(keras.ops.cast(x * 10, "int32"), WHOLE_NUMBERS),
    "numpy.ldexp": lambda f, x: f(x, WHOLE_NUMBERS),
    "numpy.hamming": lambda f, x: f(5),
    "numpy.hanning": lambda f, x: f(5),
    "numpy.kaiser": lambda f, x: f(5, 1.0),
    "numpy.searchsorted": lambda f, x: f(keras.ops.sort(x[0]), x[1]),
    "numpy.select": lambda f, x: f([x > 0.5], [x], 0.0),
    "random.beta": lambda f, x: f((4, 4), x, x, seed=1),
    "random.binomial": lambda f, x: f((4, 4), tf.fill([4, 4], 5.0), x, seed=1),
    "random.categorical": lambda f, x: f(x, 2, seed=1),
    "random.gamma": lambda f, x: f((4, 4), x, seed=1),
    "random.randint": lambda f, x: f((2, 8), 0, 9, seed=1),
    "rnn.cudnn_ok": lambda f, x: f("tanh", "sigmoid", False, True),
}
# They are for GPUs, not there on TensorFlow, or take no tensors.
LEFT_OUT = (
    *("numpy.vectorize", "rnn.gru", "rnn.lstm", "rnn.bidirectional_gru", "rnn.bidirectional_lstm", "core.is_tensor"),
    *("core.name_scope", "core.device_scope", "core.compute_output_spec", "core.cond", "core.custom_gradient"),
    "core.remat",
)


OUT_OF_BOUNDS = 5  # an axis that no tensor has


def image(x: Any) -> Any:
    return keras.ops.reshape(keras.ops.tile(x, (4, 1)), (1, 4, 4, 4))


def functions(with_rule: bool) -> Iterator[tuple[str, Callable]]:
    """The functions of the backend that have a rule, or have none, with the names that rules have or would have."""
    from keras_par.keras_patches.table.uses import located
    from keras_par.keras_patches.variables.operations import BACKEND, LOOPS, ROOMS
    from keras_par.sharding.rules.table import RULES

    for room in ROOMS:
        module = importlib.import_module(located(f"{BACKEND}.{room}"))
        for name, function in sorted(vars(module).items()):
            is_own = isinstance(function, types.FunctionType) and function.__module__ == module.__name__
            is_asked = is_own and not name.startswith("_") and name not in LOOPS
            if is_asked and f"{room}.{name}" not in LEFT_OUT and (f"{room}.{name}" in RULES) == with_rule:
                yield f"{room}.{name}", function
                yield from variants(f"{room}.{name}", function) if with_rule else ()


def variants(name: str, function: Callable) -> Iterator[tuple[str, Callable]]:
    """A function along other dims, and with their dims kept, if it can be told to."""
    parameters = inspect.signature(function).parameters
    along = [{"axis": axis} for axis in (0, 1, None, (0, -1), OUT_OF_BOUNDS)]
    for options in (*along, {"axis": -1, "keepdims": True}):
        if options.keys() <= parameters.keys():
            yield f"{name}({options})", functools.partial(function, **options)


def call(name: str, function: Callable, x: Any) -> list:
    """The results of one function, some of whose arguments are `x`."""
    keras.utils.set_random_seed(1)
    if name in CALLS:
        return results(CALLS[name](function, x))
    arguments = []
    for each in inspect.signature(function).parameters.values():
        if each.default is each.empty and each.kind not in (each.VAR_KEYWORD, each.KEYWORD_ONLY):
            arguments.append([x, x] if each.name in LISTS else ARGUMENTS.get(each.name, x))
    return results(function(*arguments))


def results(found: Any) -> list:
    from keras_par.sharding.tensor import whole

    return [whole(each) for each in tf.nest.flatten(found)]


def in_function(name: str, function: Callable, x: Any) -> list:
    """As `call`, in a graph, of a value that is not known while it is traced."""

    def traced():
        return call(name, function, tf.identity(x) if x is X else x)

    return tf.function(traced, autograph=False)()


def gradient(name: str, function: Callable, x: Any) -> list:
    """Of a weighted sum of all numbers that `call` gives; of a sharded tensor its shards, put together."""
    own = getattr(x, "local", x)
    with tf.GradientTape() as tape:
        tape.watch(own)
        found = [each for each in call(name, function, x) if tf.is_tensor(each) and each.dtype.is_floating]
        flat = [tf.reshape(tf.cast(each, "float64"), [-1]) for each in found]
        loss = sum(tf.reduce_sum(each * tf.cos(tf.range(1.0, tf.size(each) + 1, dtype="float64"))) for each in flat)
    slope = tape.gradient(loss, own, unconnected_gradients="zero") if found else tf.zeros_like(own)
    slope = tf.convert_to_tensor(slope)  # some are slices
    return results(slope if own is x else x.with_local(slope))


def differences(in_turns: bool, with_rule: bool = False, axes: tuple = (None, "model")) -> dict[str, Any]:
    """What functions give otherwise with a sharded tensor or variable than with a whole one; how many were tried.

    Each with both, in a graph and without, or in turns one of them in a graph. And its gradient by a tensor.
    """
    import keras_par as kp
    from keras_par.comm import world
    from keras_par.comm.counted import CountedCommunicator
    from keras_par.keras_patches.variables.layouts import divide, rank_mesh

    mesh = keras.distribution.DeviceMesh((1, kp.size()), ("batch", "model"))
    layout_map = keras.distribution.LayoutMap(mesh)
    layout_map[".*divided"] = axes
    with kp.ModelParallel(layout_map=layout_map, batch_dim_name="batch").scope():
        variable = keras.Variable(X, name="divided")
    undivided = keras.Variable(X)
    tensor = divide(X, axes, rank_mesh(mesh))
    kinds = (("tensor", tensor, X), ("variable", variable, undivided))
    found, num_tried, num_compared, num_sent, num_derived, failed = {}, 0, 0, 0, 0, set()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number, (name, function) in enumerate(functions(with_rule)):
            ways = (call, in_function)[:: 1 if number % 2 else -1]
            pairs = zip(kinds, ways, strict=True) if in_turns else itertools.product(kinds, ways)
            for (kind, sharded, same), run in pairs:
                expected = outcome(run, name, function, same)
                counting = CountedCommunicator(world.current())
                before = world.replace(counting)
                given = outcome(run, name, function, sharded)
                world.replace(before)
                num_sent += bool(counting.calls)
                what = f"{name} of a {kind}, by {run.__name__}"
                if with_rule and isinstance(expected, str):  # plain Keras cannot either, and says so in its own way
                    if f"'axis': {OUT_OF_BOUNDS}" in name and not isinstance(given, str):
                        found[what] = str(given)[:200], expected
                    continue
                num_compared += 1
                failed |= {what} if isinstance(expected, str) else set()
                if not alike(given, expected) and not alike(given, outcome(run, name, function, X)):
                    found[what] = str(given)[:200], str(expected)[:200]
            expected, given = (outcome(gradient, name, function, each) for each in (tf.identity(X), tensor))
            if isinstance(expected, list):
                num_derived += bool(expected[0].any())
                if not alike(given, expected):
                    found[f"gradient of {name}"] = str(given)[:200], str(expected)[:200]
            num_tried += 1
    about = {"tried": num_tried, "compared": num_compared, "derived": num_derived, "sent": num_sent}
    return {"size": kp.size(), "differ": found, "failed": sorted(failed), **about}


def unplanned(axes: tuple) -> dict[str, Any]:
    """What two ranks send for functions that have a rule, and for their gradients, otherwise than a search counts it.

    Each as the search has it, and as tracing it counts it: kinds of collectives with bytes.
    """
    from keras_par.comm import world
    from keras_par.comm.planned import PlannedCommunicator
    from keras_par.keras_patches.variables import operations
    from keras_par.plan.mesh import Mesh
    from keras_par.sharding.mesh import RankMesh

    operations.install()
    found, num_tried = {}, 0
    mesh = RankMesh(Mesh((1, 2), ("batch", "model"), (0, 1)))
    for name, function in functions(with_rule=True):
        outcomes = outcome(in_function, name, function, X), outcome(gradient, name, function, tf.identity(X))
        if not any(isinstance(each, str) for each in outcomes):  # TensorFlow has no gradient of some
            before = world.replace(PlannedCommunicator(range(2)))
            try:
                both = planned(name, function, axes), sent(name, function, axes, mesh)
            finally:
                world.replace(before)
            num_tried += 1
            if both[0] != both[1]:
                found[name] = both
    return {"differ": found, "tried": num_tried}


def planned(name: str, function: Callable, axes: tuple) -> Counter:
    """What a search counts for a function of a tensor, and its gradient."""
    from keras_par.plan.trace import Trace, without_idle_gradients
    from keras_par.plan.transfer import transfer
    from keras_par.sharding.recording import Recorder

    trace = Trace()

    def traced():
        value = tf.compat.v1.placeholder(X.dtype, X.shape)
        call(name, function, Recorder(trace).variable(value, "x", True))

    tf.function(traced, autograph=False).get_concrete_function()
    without_idle_gradients(trace)
    layouts: dict[int, tuple] = {0: axes}
    moves = {}  # of which some are made once
    for operation in trace.operations:
        made = transfer(operation, trace.tensors, layouts, {"batch": 1, "model": 2}, 1)
        layouts.update(zip(operation.results, made.results, strict=True))
        moves.update(((len(moves) if each.once is None else each.once, each.kind), each) for each in made.sent)
    sizes = [(kind, size) for move in moves.values() for kind, size in move.collectives]
    return Counter(f"{kind} {size}" for kind, size in sizes if size)


def sent(name: str, function: Callable, axes: tuple, mesh: Any) -> Counter:
    """What a rank sends for a function of a sharded tensor, and its gradient, in a graph."""
    from keras_par.comm import world
    from keras_par.comm.counted import CountedCommunicator
    from keras_par.keras_patches.variables.layouts import divide

    before = world.replace(counting := CountedCommunicator(world.current()))
    try:
        tf.function(lambda: gradient(name, function, divide(X, axes, mesh)), autograph=False).get_concrete_function()
    finally:
        world.replace(before)
    found = Counter(f"{each.kind} {each.num_bytes}" for each in counting.calls)
    return found - Counter([f"all_gather {X.shape.num_elements() * X.dtype.size // 2}"])  # the whole gradient


def outcome(run: Callable, name: str, function: Callable, x: Any) -> list | str:
    """What `run` returns, as arrays, or the kind of its error: some of Keras's functions take no variables."""
    try:
        found = run(name, function, x)
    except Exception as error:
        return type(error).__name__
    return [each if isinstance(each, (str, bool)) else np.asarray(each) for each in found]


def alike(given: list | str, expected: list | str) -> bool:
    if isinstance(given, str) or isinstance(expected, str):
        return given == expected
    close = functools.partial(np.allclose, equal_nan=True, rtol=1e-5, atol=1e-6)
    return len(given) == len(expected) and all(
        np.array_equal(a, b)
        if np.asarray(b).dtype.kind in "OSU"
        else np.shape(a) == np.shape(b) and np.asarray(a).dtype == np.asarray(b).dtype and close(a, b)
        for a, b in zip(given, expected, strict=True)
    )


def picked(num_rows: int, dtype: str) -> dict:
    """A number of each of so many times 5 rows of 7, its gradients, and the kinds of operations of these; both ways."""
    from keras_par.sharding.rules.losses import pick

    values = tf.random.stateless_normal((num_rows, 5, 7), (1, 2), dtype=dtype)
    places = tf.random.stateless_uniform((num_rows, 5), (1, 3), 0, 7, "int32")
    ways = {"ours": pick, "tensorflow's": lambda x, places: tf.gather(x, places, axis=-1, batch_dims=2)}
    results: dict = {"kinds": {}}
    for name, way in ways.items():

        @tf.function(autograph=False, input_signature=[tf.TensorSpec([None, 5, 7], dtype)])
        def derived(x, way=way):
            with tf.GradientTape() as second:
                second.watch(x)
                with tf.GradientTape() as first:
                    first.watch(x)
                    found = way(x, places)
                    loss = tf.reduce_sum(found**3)
                gradient = first.gradient(loss, x)
                square = tf.reduce_sum(gradient**2)
            return found, gradient, tf.convert_to_tensor(second.gradient(square, x))

        results[name] = [each.numpy() for each in derived(values)]
        results["kinds"][name] = kinds_of(derived.get_concrete_function().graph)
    return results


def kinds_of(graph) -> set[str]:
    """The kinds of its operations and of those of the functions that it calls."""
    definition = graph.as_graph_def()
    nodes = [*definition.node, *(node for function in definition.library.function for node in function.node_def)]
    return {node.op for node in nodes}
