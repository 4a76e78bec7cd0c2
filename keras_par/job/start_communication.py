"""Starts communication once, as the launch allows: Horovod's or TensorFlow's in a launched job, else the solo one."""

import atexit
import os

import tensorflow as tf

from keras_par.base import rank_variables
from keras_par.base.addresses import HERE, address_of
from keras_par.comm import world
from keras_par.comm.communicator import Communicator, SoloCommunicator
from keras_par.comm.horovod import HorovodCommunicator
from keras_par.comm.routes import shared
from keras_par.comm.tensorflow import TensorFlowCommunicator
from keras_par.job import gpu, launch_environment, rank_heartbeat, rendezvous
from keras_par.job.meeting import RendezvousMeeting
from keras_par.job.step_clock import TimedCommunicator, clock

LATER_SECONDS = 30  # after the limit of all engines, so that a launcher can name who does not come before others die


def start(engine: str | None = None) -> Communicator:
    """Starts communication as the launch allows, once; later calls return the same communicator.

    Args:
        engine: "mpi", "gloo", "tensorflow" or "solo"; None takes what the launch offers.

    Raises:
        ValueError: `engine` is not one of these.
        RuntimeError: the launch does not offer `engine`, Horovod is missing or does not load, there are variables that
            TensorFlow's collectives would lose, or this process has left its job for good.
    """
    if engine not in (None, "mpi", "gloo", "tensorflow", "solo"):
        raise ValueError(f"keras-par: engine={engine!r} is unknown, use 'mpi', 'gloo', 'tensorflow', 'solo' or None.")
    if not world.is_started():
        world.require_may_begin()
        world.begin(create(engine, launch_environment.detect(engine)))
        atexit.register(world.stop)
    elif engine not in (None, world.current().engine):
        raise RuntimeError(
            f"keras-par: init(engine={engine!r}) came after communication had started on {world.current().engine}: "
            "call it first, or call kp.shutdown() before."
        )
    return world.current()


def create(engine: str | None, launched: launch_environment.Launch) -> Communicator:
    if engine not in (None, launched.engine):
        how = {
            **{"mpi": "mpirun -np N", "gloo": "horovodrun -np N --gloo", "solo": "python, without a launcher"},
            "tensorflow": "keras-par run -np N --engine tensorflow",
        }
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
    clock.is_compared = communicator.engine == "tensorflow"
    return TimedCommunicator(communicator)


def connected(launched: launch_environment.Launch) -> Communicator:
    """All ranks of the launch, with this one's GPU taken."""
    if launched.engine == "solo":
        gpu.take(alone := SoloCommunicator())
        return alone
    if launched.engine == "tensorflow":
        return shared(by_tensorflow(launched.size))
    if launched.engine == "gloo":  # by itself it lets ranks die that have waited 30 s for one that loads slowly
        seconds = launch_environment.start_seconds(os.environ) + LATER_SECONDS
        os.environ.setdefault("HOROVOD_GLOO_TIMEOUT_SECONDS", str(seconds))
    gpu.take(communicator := HorovodCommunicator(launched.engine, launched.size))
    return shared(communicator)


def by_tensorflow(size: int) -> Communicator:
    """All ranks, connected by TensorFlow, which begins with the GPU that this one has taken."""
    rank, local_rank, local_size = map(rank_variables.number, ("rank", "local_rank", "local_size"))
    communicator, address, refusal = TensorFlowCommunicator(rank, size, (local_rank, local_size)), HERE, None
    try:
        gpu.take(communicator)
        if not os.environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"].startswith("127."):
            address = address_of(os.environ["HOROVOD_GLOO_IFACE"], os.environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"])
    except RuntimeError as error:
        refusal = str(error)
    communicator.connect(RendezvousMeeting(rank, size), address, refusal)
    return communicator
