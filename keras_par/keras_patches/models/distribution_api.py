"""What `keras.distribution` asks its backend for, of ranks as devices; it takes the place of Keras's module for that.

It also keeps the strategy that is set, past `clear_session`, too.
"""

import threading
from typing import Any

import tensorflow as tf
from keras.src.backend import distribution_lib

from keras_par.comm import world
from keras_par.job.start_communication import start
from keras_par.keras_patches.variables.layouts import distribute_tensor as distribute_tensor


def __getattr__(name: str) -> Any:
    """What Keras's module has besides."""
    return getattr(distribution_lib, name)


def list_devices(device_type: str | None = None) -> list[str]:
    """One device for each rank of the job: ["cpu:0", "cpu:1"], or "gpu:..." where ranks own a GPU."""
    own = "gpu" if tf.config.get_visible_devices("GPU") else "cpu"
    kind = (device_type or own).lower()
    return [f"{kind}:{rank}" for rank in range(world.current().size)] if kind in (own, "cpu") else []


def get_device_count(device_type: str | None = None) -> int:
    """Number of devices in the job, which is the number of ranks."""
    return len(list_devices(device_type))


def initialize(job_addresses=None, num_processes: int | None = None, process_id: int | None = None) -> None:
    """Starts communication; what it is given must fit the launch, which decides about addresses itself.

    Raises:
        ValueError: `num_processes` or `process_id` is not the launch's.
    """
    communicator = start()
    for name, given, launched in (
        ("num_processes", num_processes, communicator.size),
        ("process_id", process_id, communicator.rank),
    ):
        if given is not None and given != launched:
            raise ValueError(
                f"keras-par: keras.distribution.initialize({name}={given}) does not fit the launch, where it is "
                f"{launched}: leave it out, or start another number of ranks."
            )


def num_processes() -> int:
    return world.current().size


def process_id() -> int:
    return world.current().rank


class StrategyStore:
    """Has the two functions of Keras's `global_state` that `keras.distribution` calls.

    A thread that has set no strategy has the one that was set last.
    """

    def __init__(self):
        self._newest: Any = None
        self._own = threading.local()

    def set_global_attribute(self, name: str, value: Any) -> None:
        """Sets this thread's strategy, which is also that of threads that set none."""
        self._own.value = self._newest = value

    def get_global_attribute(self, name: str) -> Any:
        """This thread's strategy."""
        return getattr(self._own, "value", self._newest)


STORE = StrategyStore()
