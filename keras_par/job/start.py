"""Starts communication once, as the launch allows: Horovod's in a launched job, the solo one otherwise."""

import atexit
from collections.abc import Callable

from keras_par.comm import world
from keras_par.comm.communicator import Communicator
from keras_par.comm.solo import SoloCommunicator
from keras_par.comm.ways import shared
from keras_par.job import heartbeat, launch, rendezvous
from keras_par.job.watched import WatchedCommunicator


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
        world.begin(create(engine, launch.detect()))
        atexit.register(world.stop)
    elif engine not in (None, world.current().engine):
        raise RuntimeError(
            f"keras-par: init(engine={engine!r}) came after communication had started on {world.current().engine}: "
            "call it first, or call kp.shutdown() before."
        )
    return world.current()


def create(engine: str | None, launched: launch.Launch) -> Communicator:
    if engine not in (None, launched.engine):
        how = {"mpi": "mpirun -np N", "gloo": "horovodrun -np N --gloo", "solo": "python, without a launcher"}
        raise RuntimeError(
            f"keras-par: init(engine={engine!r}) does not fit this launch, which is {launched.engine} with "
            f"{launched.size} rank(s): start the script by '{how[engine]}'."
        )
    if launched.engine == "solo":
        return watched(SoloCommunicator)
    rendezvous.join(launched)
    from keras_par.comm.horovod import HorovodCommunicator

    return watched(lambda: shared(HorovodCommunicator(launched.engine, launched.size)))


def watched(start: Callable[[], Communicator]) -> Communicator:
    """What `start` returns, noting its collectives for the launcher where one watches this process."""
    beat = heartbeat.current()
    with beat.collective("kp.init"):
        communicator = start()
    return WatchedCommunicator(communicator, beat) if beat.is_watched else communicator
