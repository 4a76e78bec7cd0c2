"""Has TensorFlow name its devices as a rank's before anything is made, where its collectives will connect the ranks.

It is called behind TensorFlow's import, which another module of this package may have begun: this one needs none of
those that import TensorFlow but the one that names devices.
"""

import contextlib
import multiprocessing
import os

from keras_par.base import rank_variables
from keras_par.comm import tensorflow_server
from keras_par.job import launch_environment

PREPARED = "KERAS_PAR_PREPARED"  # a variable: the process that is a rank


def prepare() -> None:
    """Has TensorFlow name its devices as those of this rank, if it is TensorFlow that will connect the ranks.

    So what a script makes before `kp.init()` lives on. A launch that makes no job is left for `start` to refuse.
    """
    with contextlib.suppress(RuntimeError, OSError):
        launched = launch_environment.detect()
        is_rank = os.environ.setdefault(PREPARED, str(os.getpid())) == str(os.getpid())  # and not its child
        if launched.engine == "tensorflow" and is_rank and multiprocessing.current_process().name == "MainProcess":
            rank = rank_variables.number("rank") if launched.rank is None else launched.rank
            tensorflow_server.prepare(rank)
