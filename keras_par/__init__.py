"""Distribution strategies for Keras 3 on TensorFlow; importing this package loads neither TensorFlow nor Horovod."""

import importlib
import sys
from typing import TYPE_CHECKING

from keras_par.base.after_import import after_import
from keras_par.base.version import VERSION

__version__ = VERSION

if TYPE_CHECKING:
    from keras_par import callbacks as callbacks
    from keras_par import data as data
    from keras_par import ops as ops
    from keras_par import ray as ray
    from keras_par import schedules as schedules
    from keras_par.checkpoint.load import load_checkpoint as load_checkpoint
    from keras_par.comm.broadcast import broadcast_object as broadcast_object
    from keras_par.comm.broadcast import broadcast_variables as broadcast_variables
    from keras_par.comm.reducer import GradientReducer as GradientReducer
    from keras_par.distribution.data_parallel import DataParallel as DataParallel
    from keras_par.distribution.describe import describe as describe
    from keras_par.distribution.load_strategy import load_strategy as load_strategy
    from keras_par.distribution.model_parallel import ModelParallel as ModelParallel
    from keras_par.distribution.runtime import barrier as barrier
    from keras_par.distribution.runtime import independent as independent
    from keras_par.distribution.runtime import init as init
    from keras_par.distribution.runtime import local_batch_size as local_batch_size
    from keras_par.distribution.runtime import local_rank as local_rank
    from keras_par.distribution.runtime import local_size as local_size
    from keras_par.distribution.runtime import rank as rank
    from keras_par.distribution.runtime import run_on_rank_0 as run_on_rank_0
    from keras_par.distribution.runtime import shutdown as shutdown
    from keras_par.distribution.runtime import size as size
    from keras_par.launch.function_call import run as run
    from keras_par.searching.auto_parallel import AutoParallel as AutoParallel
    from keras_par.searching.search import search as search

_ROOM_OF = {
    "AutoParallel": "keras_par.searching.auto_parallel",
    "DataParallel": "keras_par.distribution.data_parallel",
    "GradientReducer": "keras_par.comm.reducer",
    "ModelParallel": "keras_par.distribution.model_parallel",
    "barrier": "keras_par.distribution.runtime",
    "broadcast_object": "keras_par.comm.broadcast",
    "broadcast_variables": "keras_par.comm.broadcast",
    "describe": "keras_par.distribution.describe",
    "independent": "keras_par.distribution.runtime",
    "init": "keras_par.distribution.runtime",
    "load_checkpoint": "keras_par.checkpoint.load",
    "load_strategy": "keras_par.distribution.load_strategy",
    "local_batch_size": "keras_par.distribution.runtime",
    "local_rank": "keras_par.distribution.runtime",
    "local_size": "keras_par.distribution.runtime",
    "rank": "keras_par.distribution.runtime",
    "run": "keras_par.launch.function_call",
    "run_on_rank_0": "keras_par.distribution.runtime",
    "search": "keras_par.searching.search",
    "shutdown": "keras_par.distribution.runtime",
    "size": "keras_par.distribution.runtime",
}
_SUBPACKAGES = ("callbacks", "data", "ops", "ray", "schedules")

__all__ = ["__version__", *_ROOM_OF, *_SUBPACKAGES]


def __getattr__(name: str):
    if name in _SUBPACKAGES or name in _ROOM_OF:
        importlib.import_module("keras_par.base.backend").require_tensorflow()
    if name in _SUBPACKAGES:
        return importlib.import_module(f"keras_par.{name}")
    if name in _ROOM_OF:
        return getattr(importlib.import_module(_ROOM_OF[name]), name)
    raise AttributeError(f"module 'keras_par' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)


def _prepare(tensorflow: object) -> None:
    """Before anything is made that its collectives would lose."""
    if importlib.import_module("keras_par.job.launch_environment").is_for_tensorflow():
        importlib.import_module("keras_par.job.device_names").prepare()


if "tensorflow" in sys.modules:
    _prepare(sys.modules["tensorflow"])
else:
    after_import("tensorflow", _prepare)
