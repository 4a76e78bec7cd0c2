"""Loads TensorFlow and Horovod in a process of its own and prints what they are, for `keras-par doctor`."""

import json
import sys
from typing import Any


def main() -> None:
    """Prints one JSON object a line: {"tensorflow", "gpus"}, then {"mpi", "gloo", "nccl"}, or {"error"}.

    The first comes before Horovod is loaded, so that a crash while loading tells which of the two it was. With
    "--without-horovod" there is none of its engines, and {"horovod": False}.
    """
    import tensorflow as tf

    say(tensorflow=tf.__version__, gpus=len(tf.config.list_physical_devices("GPU")))
    if "--without-horovod" in sys.argv:
        return say(mpi=False, gloo=False, nccl=False, horovod=False)
    try:
        import horovod.tensorflow as hvd
    except Exception as error:
        return say(error=(str(error).strip().splitlines() or [type(error).__name__])[0])
    say(mpi=bool(hvd.mpi_built()), gloo=bool(hvd.gloo_built()), nccl=bool(hvd.nccl_built()))


def say(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    main()
