"""Makes keras.distribution's functions count ranks as devices, where TensorFlow's count those of this process."""

import tensorflow as tf

from keras_par.comm import world
from keras_par.job.start_communication import start


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
