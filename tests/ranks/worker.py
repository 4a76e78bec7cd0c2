"""One process of a pool: joins the job (or stays plain Keras), then runs the functions the parent sends."""

import faulthandler
import gc
import importlib
import os
import random
import signal
import sys
import traceback
from multiprocessing.connection import Client

from tests.branches import note_test


def main() -> None:
    kind, address = sys.argv[1:]
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    gc.disable()  # what imports make stays: looking for garbage in it takes a quarter of their time
    import keras
    import numpy as np
    import tensorflow as tf

    gc.freeze()
    gc.enable()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    if kind == "plain":
        tf.data.Dataset.__iter__ = untuned(tf.data.Dataset.__iter__)
    rank, size = join() if kind == "ranks" else (0, 1)
    with Client(address, "AF_UNIX", authkey=os.environ["KERAS_PAR_TEST_KEY"].encode()) as parent:
        parent.send((rank, size, os.getpid()))
        while (request := parent.recv()) is not None:
            module, name, arguments, test, has_grappler = request
            note_test(test)
            tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": not has_grappler})
            keras.distribution.set_distribution(None)
            keras.utils.clear_session(free_memory=False)
            keras.config.set_dtype_policy("float32")
            random.seed(rank)
            np.random.seed(rank)
            print(f"--- {module}.{name} {arguments}", file=sys.stderr, flush=True)
            try:
                value = getattr(importlib.import_module(module), name)(**arguments)
                if kind == "plain":
                    assert "keras_par" not in sys.modules, "the single-process twin must be untouched Keras"
                parent.send(("ok", value))
            except Exception as error:
                parent.send(("error", type(error).__name__, str(error), traceback.format_exc()))


def untuned(iterate):
    """Iterators that tf.data does not tune: to delete one that it tunes can take a minute.

    See `keras_patches/inputs/iterator_disposal.py`. What is read stays the same. A process was once killed for two and
    a half minutes of that.
    """
    import tensorflow as tf

    def untuned_iterator(self):
        if not tf.executing_eagerly():
            return iterate(self)
        options = tf.data.Options()
        options.autotune.enabled = False
        return iterate(self.with_options(options))

    return untuned_iterator


def join() -> tuple[int, int]:
    import keras_par as kp

    # Three ranks reduce through Horovod, as one of them wants, and others through shared memory: both ways are tested.
    if (os.environ.get("OMPI_COMM_WORLD_RANK"), os.environ.get("OMPI_COMM_WORLD_SIZE")) == ("2", "3"):
        os.environ["KERAS_PAR_SHARED_MEMORY"] = "0"
    kp.init()
    return kp.rank(), kp.size()


if __name__ == "__main__":
    main()
