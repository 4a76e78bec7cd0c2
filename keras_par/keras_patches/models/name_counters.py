"""Builds a model that is only looked at, so that the next one is like the first."""

import collections
import contextlib
from collections.abc import Iterator

from keras.src.backend.common import global_state

from keras_par.base import generators

NAMES = "object_name_uids"  # where Keras counts the names that it gives


@contextlib.contextmanager
def as_if_unbuilt() -> Iterator[None]:
    """After it a model gets the names, and its weights the seeds, that they would have got without it."""
    names = global_state.get_global_attribute(NAMES, default={})
    before = dict(names)
    try:
        with generators.kept():
            yield
    finally:
        global_state.set_global_attribute(NAMES, collections.defaultdict(int, before))
