"""Describes how a model was compiled in what is no variable, so that ranks that differ in it are found."""

import functools
import math
import types
import zlib
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

from keras_par.keras_patches.models.binding import optimizers_of

PARTS = (keras.optimizers.Optimizer, keras.optimizers.schedules.LearningRateSchedule, keras.losses.Loss)
PASSING = ("name", "built")  # names count what a process made before
PRIVATE = ("_learning_rate", "_fn_kwargs")  # where Keras keeps a schedule and the arguments of a loss function


def settings_of(model: keras.Model) -> dict[str, Any]:
    """The settings of a model's optimizers and losses, as JSON can carry them, by names such as "optimizer.beta_1".

    A learning rate that is a variable is left out: ranks take rank 0's.
    """
    found: dict[str, Any] = {}
    for number, optimizer in enumerate(optimizers_of(model)):
        found |= described(optimizer, "optimizer" if number == 0 else f"optimizer {number + 1}")
    compiled = model._compile_loss
    if compiled is not None:
        found |= described(compiled._user_loss, "loss")
        found |= described(compiled._user_loss_weights, "loss_weights")
    return found


def described(value: Any, name: str) -> dict[str, Any]:
    """A value and all settings in it, each by its own name."""
    return dict(parts_of(value, name))


def parts_of(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, PARTS):
        yield name, type(value).__qualname__
        for key, each in sorted(vars(value).items()):
            if key in PRIVATE or not (key in PASSING or key.startswith("_")):
                yield from parts_of(each, f"{name}.{key.lstrip('_')}")
    elif isinstance(value, dict):
        for key, each in value.items():
            yield from parts_of(each, f"{name}.{key}")
    elif isinstance(value, (list, tuple)) and not all(map(is_plain, value)):
        for number, each in enumerate(value):
            yield from parts_of(each, f"{name}.{number}")
    elif isinstance(value, (types.FunctionType, types.MethodType, functools.partial)):
        yield name, described_function(value)
    else:
        plain = plain_settings(value)
        if plain is not None or value is None:
            yield name, plain


def is_plain(value: Any) -> bool:
    return value is None or isinstance(value, (bool, int, float, str, np.number, np.bool_))


def plain_settings(value: Any) -> Any:
    """Numbers, texts, and arrays and containers of them, as JSON carries them; None for anything else."""
    if isinstance(value, (float, np.floating)):
        return float(value) if math.isfinite(value) else str(value)
    if isinstance(value, (np.number, np.bool_)):
        return value.item()
    if isinstance(value, np.ndarray):
        return [list(value.shape), zlib.crc32(np.ascontiguousarray(value).tobytes())]
    if isinstance(value, dict):
        return {str(key): plain_settings(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_settings(each) for each in value]
    return value if is_plain(value) else None


def described_function(function: Any) -> list:
    """A function's name, its code with the constants in it, and what it was given before the call."""
    if isinstance(function, functools.partial):
        return [described_function(function.func), plain_settings(function.args), plain_settings(function.keywords)]
    function = getattr(function, "__func__", function)
    code = getattr(function, "__code__", None)
    if code is None:
        return [getattr(function, "__qualname__", type(function).__qualname__)]
    cells = [cell.cell_contents for cell in function.__closure__ or () if not is_empty(cell)]
    given = plain_settings([function.__defaults__, function.__kwdefaults__, cells])
    return [function.__qualname__, zlib.crc32(code.co_code), constants(code), given]


def constants(code: types.CodeType) -> list:
    """The constants in a function's code and in the functions within it."""
    return [constants(each) if isinstance(each, types.CodeType) else plain_settings(each) for each in code.co_consts]


def is_empty(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - raises if the variable has no value yet
    except ValueError:
        return True
    return False
