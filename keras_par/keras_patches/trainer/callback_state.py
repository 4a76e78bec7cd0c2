"""What callbacks remember from one epoch or step to the next, for those that save and restore a run."""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import keras
from keras import callbacks as stock

from keras_par.keras_patches.trainer.keras_callbacks import is_written_elsewhere

# What Keras's callbacks count and keep, which they forget at the begin of training.
ATTRIBUTES: dict[type[keras.callbacks.Callback], tuple[str, ...]] = {
    stock.EarlyStopping: ("wait", "stopped_epoch", "best", "best_epoch", "best_weights"),
    stock.ReduceLROnPlateau: ("wait", "best", "cooldown_counter"),
    stock.ModelCheckpoint: ("best", "_batches_seen_since_last_saving", "_last_batch_seen"),
    stock.SwapEMAWeights: ("_ema_weights_in_model",),
    stock.TensorBoard: ("_global_train_batch", "_global_test_batch"),
}


def attributes_of(callback: keras.callbacks.Callback) -> tuple[str, ...]:
    """The attributes in which one of Keras's callbacks, or of a class of the user's below, has its memory."""
    return next((names for kind, names in ATTRIBUTES.items() if isinstance(callback, kind)), ())


def has_protocol(callback: keras.callbacks.Callback) -> bool:
    """True for a callback that tells by `get_state()` what it remembers, and is told by `set_state(state)`."""
    return hasattr(callback, "get_state") and hasattr(callback, "set_state")


def remembers(callback: keras.callbacks.Callback) -> bool:
    """True if something of the callback must be restored when a run goes on."""
    return bool(attributes_of(callback)) or has_protocol(callback)


def named(callbacks: list[keras.callbacks.Callback]) -> dict[str, keras.callbacks.Callback]:
    """Those that remember something; the n-th of a class has the same name in every run of a script."""
    found: defaultdict[str, int] = defaultdict(int)
    result = {}
    for callback in filter(remembers, callbacks):
        kind = type(callback).__name__
        found[kind] += 1
        result[f"{kind} {found[kind]}"] = callback
    return result


def own(callbacks: list[keras.callbacks.Callback]) -> dict[str, keras.callbacks.Callback]:
    """Those whose memory this rank saves: not Keras's that a lower rank has, too, as they remember the same."""
    return {name: each for name, each in named(callbacks).items() if not is_written_elsewhere(each)}


def recall(callback: keras.callbacks.Callback) -> dict[str, Any]:
    """What a callback remembers."""
    state = {name: getattr(callback, name, None) for name in attributes_of(callback)}
    return {"keras": state, "own": callback.get_state() if has_protocol(callback) else None}


def remind(callback: keras.callbacks.Callback, state: dict[str, Any]) -> None:
    """Gives a callback back what `recall` found."""
    for name, value in state["keras"].items():
        setattr(callback, name, value)
    if has_protocol(callback):
        callback.set_state(state["own"])


def late_ones_last(callbacks: list[keras.callbacks.Callback]) -> list[keras.callbacks.Callback]:
    """The callbacks of a `fit` in the order to be called.

    One that has an attribute `comes_after_memories` comes after all that remember something: it saves what they
    remember, and what they have changed.
    """
    last = max((i for i, each in enumerate(callbacks) if remembers(each)), default=-1)
    late = [i <= last and getattr(each, "comes_after_memories", False) for i, each in enumerate(callbacks)]
    return [callbacks[i] for i in sorted(range(len(callbacks)), key=lambda i: last + 0.5 if late[i] else i)]


def tell(callbacks: Iterable[keras.callbacks.Callback], method: str, *arguments: Any) -> None:
    """Calls a method of `kp.callbacks.Callback` of those that have it."""
    for callback in callbacks:
        if hasattr(callback, method):
            getattr(callback, method)(*arguments)
