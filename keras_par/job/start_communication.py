"""Starts communication once, as the launch allows: Horovod's in a launched job, the solo one otherwise."""

import atexit
import os

import tensorflow as tf

from keras_par.comm import world
from keras_par.comm.communicator import Communicator
from keras_par.comm.horovod import HorovodCommunicator
from keras_par.comm.routes import shared
from keras_par.comm.solo import SoloCommunicator
from keras_par.job import gpu, launch_environment, rank_heartbeat, rendezvous
from keras_par.job.step_clock import TimedCommunicator, clock


def start(engine: str | None = None) -> Communicator:
    """Starts communication as the launch allows, once; later calls return the same communicator.

    Args:
        engine: "mpi", "gloo" or "solo"; None takes what the launch offers.

    Raises:
        ValueError: `engine` is not one of these.
        RuntimeError: the launch does not offer `engine`, Horovod is missing or does not load, or this process has left
            its job for good.
    """
    if engine not in (None, "mpi", "gloo", "solo"):
        raise ValueError(f"keras-par: engine={engine!r} is unknown, use 'mpi', 'gloo', 'solo' or None.")
    if not world.is_started():
        world.require_may_begin()
        world.begin(create(engine, launch_environment.detect()))
        atexit.register(world.stop)
    elif engine not in (None, world.current().engine):
        raise RuntimeError(
            f"keras-par: init(engine={engine!r}) came after communication had started on {world.current().engine}: "
            "call it first, or call kp.shutdown() before."
        )
    return world.current()


def create(engine: str | None, launched: launch_environment.Launch) -> Communicator:
    if engine not in (None, launched.engine):
        how = {"mpi": "mpirun -np N", "gloo": "horovodrun -np N --gloo", "solo": "python, without a launcher"}
        raise RuntimeError(
            f"keras-par: init(engine={engine!r}) does not fit this launch, which is {launched.engine} with "
            f"{launched.size} rank(s): start the script by '{how[engine]}'."
        )
    gpu.device(os.environ, len(tf.config.list_physical_devices("GPU")))  # refused before others wait for this rank
    rendezvous.join(launched)
    heartbeat = rank_heartbeat.current()
    with heartbeat.collective("kp.init"):
        communicator = connected(launched)
    if heartbeat.is_watched:
        clock.watch()
    return TimedCommunicator(communicator)


def connected(launched: launch_environment.Launch) -> Communicator:
    """All ranks of the launch, with this one's GPU taken."""
    if launched.engine == "solo":
        gpu.take(alone := SoloCommunicator())
        return alone
    gpu.take(communicator := HorovodCommunicator(launched.engine, launched.size))
    return shared(communicator)
