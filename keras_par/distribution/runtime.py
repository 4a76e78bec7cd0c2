"""`kp.init()` and what it starts: communication, this rank's device, a shared seed, the hooks in Keras."""

import atexit
import importlib.metadata
import os
import sys

import keras
import tensorflow as tf

from keras_par.comm import world
from keras_par.comm.communicator import Communicator
from keras_par.distribution.seeds import Seed, share
from keras_par.job import failures, heartbeat, launch
from keras_par.job.start import start
from keras_par.seam.install import install


def init(engine: str | None = None, *, seed: Seed = "shared") -> None:
    """Starts the job: joins the other ranks of the launch, or none without a launcher. May be called again.

    Under `keras-par run`, `horovodrun` or `mpirun` it starts Horovod, gives a rank with GPUs the one of its local
    rank, or DEVICE_ID's where that is set, and lets unseeded random generators begin alike. Without a launcher there
    is one rank, and neither Horovod nor MPI is loaded. Processes that a shell loop (RANK_SIZE, RANK_ID), torchrun
    (WORLD_SIZE, RANK) or srun (SLURM_STEP_NUM_TASKS, SLURM_PROCID) has numbered find each other at MASTER_ADDR (default
    127.0.0.1, srun's first host) and MASTER_PORT (default 29500), wait HOROVOD_START_TIMEOUT seconds (default 120) for
    each other, and are connected by Gloo.

    Args:
        engine: "mpi", "gloo" or "solo" to insist on one; None takes what the launch offers.
        seed: "shared" gives all ranks the states of rank 0's generators of Python, NumPy, TensorFlow and, if it has
            been imported, torch, where they differ, so that what a script without a seed shuffles or splits is the
            same everywhere. "own" leaves each rank its own. Seeds that the script sets afterwards are kept.

    Raises:
        ValueError: `engine` or `seed` is unknown.
        RuntimeError: the launch does not offer `engine`, numbered processes do not make one job or have an impossible
            DEVICE_ID, Horovod is missing or does not load, or this version of Keras is not supported.

    Costs a few all-gathers of some bytes, the first time.
    """
    if seed not in ("shared", "own"):
        raise ValueError(f"keras-par: seed={seed!r} is unknown, use 'shared' or 'own'.")
    first = not world.is_started()
    install()
    device = launch.device(os.environ, len(tf.config.list_physical_devices("GPU"))) if first else None
    communicator = start(engine)
    if first:
        take_gpu(communicator, device)
        failures.start(communicator)
        atexit.register(failures.leave_together)
        share(communicator, seed)
        tell_versions(communicator)
        sys.excepthook = tell_before(sys.excepthook)


def shutdown() -> None:
    """Leaves the job. Other ranks that still wait for this one get an error; happens by itself at exit."""
    world.stop()


def rank() -> int:
    """This process's number among all ranks, from 0."""
    return world.current().rank


def size() -> int:
    """Number of ranks in the job."""
    return world.current().size


def local_rank() -> int:
    """This process's number among the ranks of its host, from 0."""
    return world.current().local_rank


def local_size() -> int:
    """Number of ranks on this host."""
    return world.current().local_size


def barrier() -> None:
    """Returns once every rank has called it. Costs one all-reduce of a scalar."""
    world.current().barrier("kp.barrier")


def take_gpu(communicator: Communicator, device: int | None) -> None:
    """Lets this rank see one GPU, `device` or its local rank's, as TensorFlow's and Horovod's guides say.

    Tested with stand-ins for GPUs only.
    """
    gpus = tf.config.list_physical_devices("GPU")
    if gpus and (communicator.size > 1 or device is not None):
        own = gpus[communicator.local_rank % len(gpus) if device is None else device]
        tf.config.set_visible_devices(own, "GPU")
        tf.config.experimental.set_memory_growth(own, True)


def tell_versions(communicator: Communicator) -> None:
    """Lets the launcher know what computes here, for the report."""
    versions = {"tensorflow": tf.__version__, "keras": keras.__version__}
    if communicator.engine != "solo":
        versions["horovod"] = importlib.metadata.version("horovod")
    heartbeat.current().tell("about", versions=versions)


def tell_before(hook):
    """An excepthook that lets the other ranks know why this one ends, then does what `hook` does.

    Where all ranks end together because the user asked for it, it prints the sentence that says so.
    """

    def replacement(kind, error, traceback):
        if isinstance(error, KeyboardInterrupt) and str(error).startswith("keras-par: "):
            return print(error, file=sys.stderr)
        if isinstance(error, Exception):
            told = failures.explain(error)
            if told is not error:
                told.__cause__ = error
                return hook(type(told), told, told.__traceback__)
        return hook(kind, error, traceback)

    return replacement
