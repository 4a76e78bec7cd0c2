"""Calls functions with a number of rows, as a step knows it, and with the `int` that it is in one process."""

import copy
import importlib
import inspect
import json
import operator
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import tree

SIZE = 4
BESIDE = (np.arange(16, dtype="float32").reshape(4, 4) / 7, 2)  # what the other arguments are
FORMS: dict[str, Callable] = {"alone": lambda n: n, "in a tuple": lambda n: (n, 2), "in a list": lambda n: [n, n]}


def differences(
    module: str, in_graph: bool, forms: tuple[str, ...] = tuple(FORMS), names: tuple[str, ...] = ()
) -> tuple[int, list[str]]:
    """How many calls of a module's functions were compared, and those that end otherwise with a number of rows.

    Each function is called with the number in the place of each argument in turn.
    """
    from keras_par.keras_patches.rows.batch_rows import RowCount

    count, found = 0, []
    with tf.Graph().as_default() if in_graph else tf.init_scope():
        rows = RowCount(SIZE, (1,))
        for name, function in functions(importlib.import_module(module)):
            for arguments in calls(function, forms) if not names or name in names else ():
                known = outcome(function, arguments(SIZE))
                if known[0] == "error":
                    continue  # what one process has to refuse, a step may take
                count += 1
                ours = outcome(function, arguments(rows))
                # Of some functions the result is another one each time.
                if ours != known and known == outcome(function, arguments(SIZE)):
                    found.append(f"{module}.{name}{arguments('n')}: {str(ours)[:200]} for {str(known)[:200]}")
    return count, found


def functions(module: Any) -> Iterator[tuple[str, Callable]]:
    """A module's public functions."""
    for name, value in sorted(vars(module).items()):
        if not name.startswith("_") and callable(value) and not inspect.isclass(value):
            yield name, value


def calls(function: Callable, forms: tuple[str, ...]) -> Iterator[Callable]:
    """Makers of positional arguments, of which each puts what it is given in another place."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return
    places = [each for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    required = max(1, sum(each.default is each.empty for each in places))
    for count in range(required, min(len(places), required + 1) + 1):
        for place in range(count):
            for beside in BESIDE:
                for form in forms:
                    yield maker(count, place, beside, FORMS[form])


def maker(count: int, place: int, beside: Any, form: Callable) -> Callable:
    return lambda number: tuple(form(number) if at == place else copy.copy(beside) for at in range(count))


def outcome(function: Callable, arguments: tuple) -> Any:
    """What a call returns, with types, or which error it ends with."""
    tf.random.set_seed(1)
    keras.utils.set_random_seed(1)
    try:
        return "result", tree.map_structure(described, function(*arguments))
    except Exception as error:
        return "error", type(error).__name__


def described(leaf: Any) -> Any:
    if isinstance(leaf, tf.Tensor):
        static = tf.get_static_value(leaf) if tf.is_symbolic_tensor(leaf) else leaf.numpy()
        return "tensor", leaf.dtype.name, str(leaf.shape), None if static is None else np.asarray(static).tobytes()
    if isinstance(leaf, (np.ndarray, np.generic)):
        return "array", leaf.dtype.name, leaf.shape, leaf.tobytes()
    if isinstance(leaf, int) and not isinstance(leaf, bool):
        return "int", int(leaf)
    return type(leaf).__name__, repr(leaf) if "0x" not in repr(leaf) else ""


def as_python() -> list[tuple[str, Any, Any]]:
    """What Python makes of a number of rows, and of an `int`."""
    from keras_par.keras_patches.rows.batch_rows import RowCount

    rows = RowCount(SIZE, (1,))
    x = np.ones((2, SIZE), "float32")
    uses: dict[str, Callable] = {
        "range": lambda n: list(range(n)),
        "index": lambda n: x[:, n - 1].tolist(),
        "text": lambda n: f"{n} {n!r} {n:3d}",
        "json": lambda n: json.dumps({"rows": n}),
        "pickle": lambda n: (pickle.loads(pickle.dumps(n)), copy.deepcopy([n]), type(pickle.loads(pickle.dumps(n)))),
        "list": lambda n: [0] * n,
        "hash": lambda n: {n: 1}[SIZE],
        "float32": lambda n: [str(value.dtype) for value in (x * n, n / x, np.maximum(x, n), np.clip(x, 0, n))],
        "shape": lambda n: (tf.TensorShape([n, 2]).as_list(), np.zeros((n, 2)).shape, keras.Input((n,)).shape),
        "divmod": lambda n: (divmod(n, 3), n**2, -n, n % 3, n / 3, round(n), operator.index(n)),
        "spec": lambda n: str(tf.TensorSpec([n], "int32")),
    }
    return [(name, use(rows), use(SIZE)) for name, use in uses.items()]
