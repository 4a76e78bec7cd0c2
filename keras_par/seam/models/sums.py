"""Says which way the sums over ranks of a model's steps go: shared memory, or Horovod's messages."""

import logging
import warnings

import keras

from keras_par.job import heartbeat
from keras_par.seam.models.binding import Binding

ENGINES = {"mpi": "MPI", "gloo": "Gloo"}
logger = logging.getLogger("keras_par")


def way(binding: Binding) -> str:
    """One sentence; empty where there is one rank, or a job that is only planned."""
    communicator, options, mesh = binding.communicator, binding.options, binding.mesh
    road = communicator.reduces_by if options.compression is None else communicator.through("horovod").reduces_by
    if road is None:
        return ""
    horovod = f"by Horovod over {ENGINES.get(communicator.engine, communicator.engine)}"
    by = horovod if road == "horovod" else "through the shared memory of this host"
    if options.compression is not None:
        why = f"as compression='{options.compression}' needs"
    elif road == "horovod" and options.reduce_by == "auto":
        why = f"reduce_by='auto'; no shared memory, because {communicator.no_shared_memory}"
    else:
        why = f"reduce_by='{options.reduce_by}'"
    if mesh is None:
        return f"Gradients are summed {by} ({why})."
    has_groups = any(1 < mesh.size(axis) < communicator.size for axis in mesh.plan.axis_names)
    rest = f", sums over a part of them {horovod}" if has_groups and road == "shared_memory" else ""
    return f"Sums over all ranks go {by} ({why}){rest}."


def announce(model: keras.Model, binding: Binding) -> None:
    """Tells on rank 0, also the launcher, how a model is about to train; warns where sums cannot go as asked."""
    binding.announced = True
    communicator, strategy = binding.communicator, type(binding.strategy).__name__
    if model.run_eagerly and binding.options.reduce_by == "shared_memory":
        warnings.warn(
            f"keras-par: reduce_by='shared_memory' is ignored for '{model.name}', whose steps run eagerly, so that "
            "Horovod sums: compile it without run_eagerly=True.",
            stacklevel=2,
        )
    if communicator.rank > 0:
        return
    text = way(binding)
    logger.info("keras-par: '%s' runs under %s on %d ranks. %s", model.name, strategy, communicator.size, text)
    heartbeat.current().tell("about", model=model.name, strategy=strategy, sums=text)
