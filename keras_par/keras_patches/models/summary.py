"""What is told of a model, on one rank: its summary, with this rank's part of it, and which way its sums go."""

import inspect
import logging
import math
import sys
import warnings

import keras
import tensorflow as tf
from keras.src.utils import io_utils

from keras_par.comm import world
from keras_par.comm.communicator import ENGINES, Communicator
from keras_par.job import rank_heartbeat
from keras_par.keras_patches.models import binding as bindings
from keras_par.keras_patches.models.binding import Binding
from keras_par.sharding.variable_views import is_sharded, sharded

logger = logging.getLogger("keras_par")


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


def route(binding: Binding) -> str:
    """One sentence; empty where there is one rank, or a job that is only planned."""
    communicator, options, mesh = binding.communicator, binding.options, binding.mesh
    if communicator.reduces_by is None:
        return ""
    why = f"reduce_by='{options.reduce_by}'"
    if communicator.reduces_by == "engine" and options.reduce_by == "auto":
        why += f"; no shared memory, because {communicator.no_shared_memory}"
    if mesh is None:
        return f"Gradients are summed {route_in_words(communicator)} ({why})."
    groups = {axis: mesh.along(axis) for axis in mesh.plan.axis_names}
    others = {axis: group for axis, group in groups.items() if group.reduces_by not in (None, communicator.reduces_by)}
    rest = "".join(f", those along '{axis}' {route_in_words(group)}" for axis, group in others.items())
    return f"Sums over all ranks go {route_in_words(communicator)} ({why}){rest}."


def route_in_words(communicator: Communicator) -> str:
    """The way of sums over some ranks."""
    if communicator.reduces_by == "shared_memory":
        return "through the shared memory of this host"
    engine = f"by {ENGINES[communicator.engine]}"
    if communicator.reduces_by == "two_levels":
        return f"in two levels, through the shared memory of each host and {engine} between them"
    return engine


def announce(model: keras.Model, binding: Binding) -> None:
    """Tells on rank 0, also the launcher, how a model is about to train; warns where sums cannot go as asked."""
    binding.announced = True
    communicator, strategy = binding.communicator, type(binding.strategy).__name__
    if model.run_eagerly and binding.options.reduce_by == "shared_memory":
        warnings.warn(
            f"keras-par: reduce_by='shared_memory' is ignored for '{model.name}', whose steps run eagerly, so that the "
            "engine sums: compile it without run_eagerly=True.",
            stacklevel=2,
        )
    text = route(binding)  # on all ranks, which make a mesh's groups together
    if communicator.rank > 0:
        return
    logger.info("keras-par: '%s' runs under %s on %d ranks. %s", model.name, strategy, communicator.size, text)
    rank_heartbeat.current().tell("about", model=model.name, strategy=strategy, sums=text)
