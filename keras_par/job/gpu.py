"""Gives each rank its GPU before the first tensor is made, with which TensorFlow starts all GPUs that it sees."""

import os
from collections.abc import Mapping

import tensorflow as tf

from keras_par.base.environment import number
from keras_par.comm.communicator import Communicator


def take(communicator: Communicator) -> None:
    """Lets this rank see one GPU, that of DEVICE_ID or its local rank, and take its memory as it needs it.

    As TensorFlow's and Horovod's guides say. A limit of memory that the script has set stays.

    Raises:
        RuntimeError: DEVICE_ID is impossible, or TensorFlow has started its GPUs already.
    """
    gpus = tf.config.list_physical_devices("GPU")
    own = own_gpu(device(os.environ, len(gpus)), len(gpus), communicator.local_rank, communicator.size)
    if own is None:
        return
    try:
        tf.config.set_visible_devices(gpus[own], "GPU")
        if tf.config.get_logical_device_configuration(gpus[own]) is None:
            tf.config.experimental.set_memory_growth(gpus[own], True)
    except RuntimeError as error:
        raise RuntimeError(
            f"keras-par: kp.init() came after TensorFlow had started its GPUs, so that rank {communicator.rank} cannot "
            f"have GPU {own} for itself: call kp.init() before the first tensor, variable or dataset."
        ) from error
    communicator.gpu = physical(os.environ, own)


def device(environ: Mapping[str, str], num_gpus: int) -> int | None:
    """The GPU that DEVICE_ID gives this process, under any launcher; None if it is not set.

    Raises:
        RuntimeError: it is no number, or no GPU that this process sees. Without GPUs any number will do.
    """
    advice = f"this process sees {num_gpus} GPU(s), and CUDA_VISIBLE_DEVICES may hide others"
    return number(environ, "DEVICE_ID", 0, num_gpus - 1 if num_gpus else None, advice if num_gpus else "it is a device")


def own_gpu(device: int | None, num_gpus: int, local_rank: int, size: int) -> int | None:
    """Which of the GPUs that its process sees a rank takes: `device` of DEVICE_ID, else that of its local rank.

    CUDA_VISIBLE_DEVICES numbers anew, so that a process that sees one GPU takes that one, whatever its rank. None
    where there is no GPU, and in a job of one process that chose none, which keeps all it sees.
    """
    if not num_gpus or (size == 1 and device is None):
        return None
    return local_rank % num_gpus if device is None else device


def physical(environ: Mapping[str, str], own: int) -> str:
    """What CUDA_VISIBLE_DEVICES calls the GPU that this process counts as `own`; its number where nothing is hidden."""
    visible = environ.get("CUDA_VISIBLE_DEVICES", "")
    return [name.strip() for name in visible.split(",")][own] if visible else str(own)
