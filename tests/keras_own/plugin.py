"""A pytest plugin for Keras's own tests: joins the job, sets the strategy before each test, and notes each result.

KERAS_OWN_KIND is "plain" for Keras as it is, else keras_par is started. Results are appended to KERAS_OWN_FOLDER as one
JSON line a test, in a file for each rank, so that the process that started the ranks knows where one hangs. Tests in
its file "done" are left out: they have run in a job that ended early. A test's name is its id: pytest's root is
`keras/src`.
"""

import faulthandler
import json
import os
import random
import signal
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(os.environ["KERAS_OWN_FOLDER"])
IS_PLAIN = os.environ["KERAS_OWN_KIND"] == "plain"
RANK = int(os.environ.get("OMPI_COMM_WORLD_RANK", "0"))
NUM_RANKS = int(os.environ.get("OMPI_COMM_WORLD_SIZE", "1"))
# What Keras's files import at their top for a few tests of other backends. Those fail everywhere, the others run.
FOREIGN = ("conftest", "jax", "jax.numpy", "jax.experimental", "jax.experimental.sparse")


def note(**line) -> None:
    with (FOLDER / f"{RANK}.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")


def pytest_configure():
    faulthandler.register(signal.SIGUSR1, (FOLDER / f"{RANK}.stacks").open("w"), all_threads=True)
    note(pid=os.getpid())
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    if IS_PLAIN:
        return
    import keras

    import keras_par as kp

    kp.init()
    assert (kp.rank(), kp.size()) == (RANK, NUM_RANKS)
    # The tests look for files in folders that each process makes for itself, and remove them.
    keras.callbacks.Callback.every_rank_writes = True


@pytest.hookimpl(wrapper=True)
def pytest_collection(session):
    """Lets Keras's files be imported without what they import and is not installed, by stand-ins."""
    modules = {name: ModuleType(name) for name in FOREIGN if find_spec(name.split(".")[0]) is None}
    for name, module in modules.items():
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(modules[parent], child, module)
    if "jax.experimental.sparse" in modules:
        modules["jax.experimental.sparse"].JAXSparse = type("JAXSparse", (), {})  # asked of arrays that are others'
    if "conftest" in modules:  # of Keras's repository
        modules["conftest"].skip_if_backend = skip_if_backend
    sys.modules |= modules
    try:
        return (yield)
    finally:
        for name in modules:
            del sys.modules[name]


def skip_if_backend(backend: str, reason: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(backend == "tensorflow", reason=reason)


def pytest_collection_modifyitems(items):
    done = set((FOLDER / "done").read_text().split("\n"))
    items[:] = [item for item in items if item.nodeid not in done]


@pytest.fixture(autouse=True)
def strategy():
    import keras
    import numpy as np

    if not IS_PLAIN:
        import keras_par as kp

        kp.barrier()
        keras.distribution.set_distribution(kp.DataParallel())
    random.seed(1)
    np.random.seed(1)
    keras.utils.set_random_seed(1)
    yield
    keras.distribution.set_distribution(None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    note(begun=item.nodeid, time=time.time())
    return (yield)


def pytest_runtest_logreport(report):
    if report.when == "call" or report.outcome != "passed":
        said = "" if report.outcome != "failed" else str(report.longrepr)[-4000:]
        note(name=report.nodeid, outcome=report.outcome, said=said)
    if report.when == "teardown" and NUM_RANKS > 1 and not IS_PLAIN:
        from keras_par.comm import world

        if not world.is_started():  # the ranks have parted: the rest is for a new job
            os._exit(1)


def pytest_sessionfinish():
    note(finished=True)
