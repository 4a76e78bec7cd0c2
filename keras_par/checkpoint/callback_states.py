"""What callbacks remember, in a checkpoint: as JSON, and beside it arrays, which may be as large as the model."""

import json
import warnings
from typing import Any

import keras
import numpy as np

from keras_par.checkpoint.files import as_dtype
from keras_par.checkpoint.reader import Reader
from keras_par.comm.communicator import Communicator, gather_or_raise
from keras_par.keras_patches.trainer import callback_state

PREFIX = "callbacks/"


def take(callbacks: list[keras.callbacks.Callback]) -> tuple[dict[str, np.ndarray], str | None]:
    """Copies of what the callbacks remember that this rank saves, and a sentence about one that cannot be saved."""
    arrays: dict[str, np.ndarray] = {}
    for name, callback in callback_state.own(callbacks).items():
        parts: list[np.ndarray] = []
        try:
            document = json.dumps(encoded(callback_state.recall(callback), parts))
        except Exception as error:
            return {}, (
                f"what callback '{name}' remembers cannot be saved ({type(error).__name__}: {error}): let its "
                "get_state return numbers, strings, None, NumPy arrays, and lists and dicts of such."
            )
        arrays[PREFIX + name] = np.frombuffer(document.encode(), np.uint8)
        arrays |= {f"{PREFIX}{name}/{number}": part for number, part in enumerate(parts)}
    return arrays, None


def restore(callbacks: list[keras.callbacks.Callback], reader: Reader, communicator: Communicator) -> None:
    """Gives the callbacks back what they remembered; costs two all-gathers of a few bytes.

    On as many ranks each takes what it has saved itself; what it did not save, and on another number of ranks all, is
    that of the lowest rank that did.

    Raises:
        ValueError: on every rank, if a callback's `set_state` fails, or a file cannot be read.
    """
    size = reader.manifest.world_size
    ranks = [communicator.rank] if communicator.size == size else []
    ranks += [rank for rank in range(size) if rank not in ranks]
    complaint = None
    for name, callback in callback_state.named(callbacks).items():
        rank = next((rank for rank in ranks if PREFIX + name in reader.names(rank)), None)
        if rank is None:
            warn_of_unknown(name, reader, communicator)
            continue
        try:
            callback_state.remind(callback, read(reader, rank, name))
        except Exception as error:
            complaint = (
                f"callback '{name}' cannot be given back what it remembered in checkpoint '{reader.manifest.name}' "
                f"({type(error).__name__}: {error}): let its set_state take what its get_state gave."
            )
    reader.close()
    gather_or_raise(communicator, "kp.resume.callbacks", None, complaint)


def warn_of_unknown(name: str, reader: Reader, communicator: Communicator) -> None:
    if communicator.rank == 0:
        warnings.warn(
            f"keras-par: checkpoint '{reader.manifest.name}' does not know callback '{name}', which begins anew: give "
            "fit the same callbacks as when the checkpoint was written.",
            stacklevel=2,
        )


def read(reader: Reader, rank: int, name: str) -> Any:
    """What a callback remembered, from a rank's file."""
    document = json.loads(reader.read(rank, PREFIX + name).tobytes())
    return decoded(document, lambda number: reader.read(rank, f"{PREFIX}{name}/{number}"))


def encoded(state: Any, parts: list[np.ndarray]) -> Any:
    """`state` as JSON can carry it; copies of its arrays are added to `parts`.

    Raises:
        TypeError: it holds something else.
    """
    if state is None or (isinstance(state, (bool, int, float, str)) and not isinstance(state, np.generic)):
        return state
    if isinstance(state, (list, tuple)):
        return [encoded(each, parts) for each in state]
    if isinstance(state, dict) and all(isinstance(key, str) for key in state):
        return {"dict": {key: encoded(each, parts) for key, each in state.items()}}
    if isinstance(state, (np.ndarray, np.generic)) and not state.dtype.hasobject and state.dtype.names is None:
        parts.append(np.array(state, state.dtype.newbyteorder("=")))
        dtype = parts[-1].dtype
        return {"array": len(parts) - 1, "dtype": dtype.name if dtype.isbuiltin else dtype.str}
    raise TypeError(f"it holds a {type(state).__name__}")


def decoded(document: Any, array) -> Any:
    """What `encoded` was given; `array` returns that of a number."""
    if isinstance(document, list):
        return [decoded(each, array) for each in document]
    if not isinstance(document, dict):
        return document
    if "dict" in document:
        return {key: decoded(each, array) for key, each in document["dict"].items()}
    value = as_dtype(array(document["array"]), np.dtype(document["dtype"]))
    return value if value.ndim else value[()]
