"""Deletes tf.data's iterators in threads of their own, since to delete one can take as long as it has lived.

Where tf.data tunes a pipeline, a thread of its sleeps between two looks, for up to as long as the iterator has lived,
at most 60 s. To delete the iterator wakes this thread, and sets the sign to end a moment later (`Model::OptimizeLoop`
and `CancellationManager::StartCancel` in TensorFlow's C++). A thread that gets the processor at once does not see the
sign, sleeps again, and is waited for. Where a rank has one core, that happens to two of three iterators, and all ranks
wait.
"""

import functools
import queue
import sys
import threading
import time
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import tensorflow as tf

_unused: queue.SimpleQueue[list] = queue.SimpleQueue()  # may be put into while garbage is collected


class DeletedAside:
    """A dataset whose iterators are deleted aside, whoever lets go of them last.

    Args:
        dataset: to make them of.
    """

    def __init__(self, dataset: tf.data.Dataset):
        self._dataset = dataset

    def __iter__(self) -> Iterator:
        iterator = iter(self._dataset)
        handle = tf.nest.flatten(iterator, expand_composites=True)
        weakref.finalize(iterator, _unused.put, handle).atexit = False
        _begin()
        return iterator


def let_go_aside(dataset: Any) -> Iterable:
    """`dataset`, with iterators that no one waits for when they end; as it is if tf.data does not tune it."""
    is_tuned = isinstance(dataset, tf.data.Dataset) and dataset.options().autotune.enabled is not False
    return DeletedAside(dataset) if is_tuned else dataset


@functools.cache
def _begin() -> None:
    threading.Thread(target=_delete_all, name="kp-iterators", daemon=True).start()


def _delete_all() -> None:
    while True:
        handle = _unused.get()
        threading.Thread(target=_delete, args=[handle], name="kp-iterator", daemon=True).start()


def _delete(handle: list) -> None:
    """Empties the list, whose only element is the last reference to what makes an iterator live.

    The thread that lets go of the iterator may not have come to its own reference yet, and would delete it if that
    were the last one.
    """
    seconds = 0.001
    while sys.getrefcount(handle[0]) > 2:  # that of the list, and the argument's
        time.sleep(seconds)
        seconds = min(2 * seconds, 1.0)
    handle.clear()
