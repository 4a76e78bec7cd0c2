"""What callbacks remember from one epoch or step to the next, for those that save and restore a run."""

import contextlib
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import keras
from keras import callbacks as stock

from keras_par.seam.callbacks.stock_callbacks import is_written_elsewhere
from keras_par.seam.models.callback import Callback, tell, trait

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


def introduce(callbacks: list[keras.callbacks.Callback]) -> list[keras.callbacks.Callback]:
    """Tells those that have a method `meet` all callbacks of a `fit`, and returns these in the order to be called.

    One that has an attribute `comes_after_memories` comes after all that remember something: it saves what they
    remember, and what they have changed.
    """
    last = max((i for i, each in enumerate(callbacks) if remembers(each)), default=-1)
    before, rest = callbacks[: last + 1], callbacks[last + 1 :]
    late = [each for each in before if trait(each, "comes_after_memories")]
    tell(callbacks, "meet", callbacks)
    return [*(each for each in before if not any(each is other for other in late)), *late, *rest]


@contextlib.contextmanager
def told_of_exit(callbacks: list[keras.callbacks.Callback]) -> Iterator[None]:
    """Calls `on_fit_exit()` of each callback that has it, however what is within ends."""
    try:
        yield
    finally:
        tell(callbacks, "on_fit_exit")


class AllBegun(Callback):
    """Calls `on_all_begun()` of each callback that has it, once all have begun and forgotten what they knew.

    Args:
        callbacks: of the `fit`.
    """

    reads_own_logs = True

    def __init__(self, callbacks: list[keras.callbacks.Callback]):
        super().__init__()
        self._callbacks = callbacks

    def on_train_begin(self, logs=None):
        tell(self._callbacks, "on_all_begun")
