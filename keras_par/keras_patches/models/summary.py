"""Prints a model's summary on one rank, and adds for a divided model what this rank holds of it."""

import inspect
import math
import sys

import tensorflow as tf
from keras.src.utils import io_utils

from keras_par.comm import world
from keras_par.keras_patches.models import binding as bindings
from keras_par.sharding.variable_views import is_sharded, sharded


def summary(original):
    """Prints as ever, with the whole sizes, and for a divided model one line more, but on rank 0 only.

    A rank whose script gives a `print_fn`, or catches what is printed, gets the text as ever. Costs no collective.
    """
    signature = inspect.signature(original)

    def replacement(self, *args, **kwargs):
        call = signature.bind(self, *args, **kwargs)
        if is_repetition(call.arguments.get("print_fn")):
            call.arguments["print_fn"] = nowhere
        original(*call.args, **call.kwargs)
        if sharded(self.variables):
            shapes = [(v.local_shape if is_sharded(v) else tuple(v.shape), v.dtype) for v in self.variables]
            count = sum(math.prod(shape) for shape, _ in shapes)
            size = sum(math.prod(shape) * tf.as_dtype(dtype).size for shape, dtype in shapes)
            show = call.arguments.get("print_fn") or io_utils.print_msg
            show(f" Parameters on this rank: {count:,} ({size / 2**20:.2f} MB)")

    return replacement


def is_repetition(print_fn) -> bool:
    """True if rank 0 prints the same on the job's output."""
    is_other = world.is_started() and world.current().rank != 0 and not bindings.is_independent()
    return is_other and print_fn is None and sys.stdout is sys.__stdout__


def nowhere(text, line_break=True) -> None:
    """Prints nothing."""
