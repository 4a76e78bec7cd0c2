"""The job: `kp.init()` starts communication, this rank's device, a seed, the hooks in Keras; a rank's place in it."""

import atexit
import contextlib
import importlib.metadata
import multiprocessing
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from keras_par.base import rank_variables
from keras_par.base.heartbeat_page import CALLS
from keras_par.comm import world
from keras_par.comm.agreed import AgreedValueError
from keras_par.comm.communicator import Communicator, gather_or_raise
from keras_par.distribution.seeds import Seed, share
from keras_par.job import failures, rank_heartbeat
from keras_par.job.start_communication import start
from keras_par.keras_patches.coordination import fit_call as runs
from keras_par.keras_patches.files.model_files import together
from keras_par.keras_patches.inputs.input import without_distribution
from keras_par.keras_patches.install import install
from keras_par.keras_patches.models import binding as bindings
from keras_par.plan.options import OF_A_HOST, Options
from keras_par.plan.rows import row_range
from keras_par.sharding import step as steps


def init(engine: str | None = None, *, seed: Seed = "shared") -> None:
    """Starts the job: joins the other ranks of the launch, or none without a launcher. May be called again.

    Example:
        ```python
        kp.init()
        print(f"this is rank {kp.rank()} of {kp.size()}")
        kp.size()  # -> 2
        ```

    Under `keras-par run`, `horovodrun` or `mpirun` it starts Horovod, or TensorFlow's own collectives. It gives a rank
    with GPUs the one of its local rank, or DEVICE_ID's where that is set, and lets unseeded random generators begin
    alike. Without a launcher there is one rank, and neither Horovod nor MPI is loaded. Processes that a shell loop
    (RANK_SIZE, RANK_ID), torchrun (WORLD_SIZE, RANK) or srun (SLURM_STEP_NUM_TASKS, SLURM_PROCID) has numbered find
    each other at MASTER_ADDR (default 127.0.0.1, srun's first host) and MASTER_PORT (default 29500), wait
    HOROVOD_START_TIMEOUT seconds (default 120) for each other, and are connected by Gloo, or by TensorFlow where
    Horovod is not installed.

    Args:
        engine: "mpi", "gloo", "tensorflow" or "solo" to insist on one; None takes TensorFlow
            where KERAS_PAR_ENGINE says so or Horovod is not installed, else what the launch offers.
        seed: "shared" gives all ranks the states of rank 0's generators of Python, NumPy, TensorFlow and, if it has
            been imported, torch, where they differ, so that what a script without a seed shuffles or splits is the
            same everywhere. "own" leaves each rank its own. Seeds that the script sets afterwards are kept.

    Raises:
        ValueError: `engine` or `seed` is unknown.
        RuntimeError: the launch does not offer `engine`, numbered processes do not make one job or have an impossible
            DEVICE_ID, Horovod is missing or does not load, this version of Keras is not supported, this process is a
            worker that multiprocessing has started within a rank, or it has left its job for good: by an error that
            other ranks did not have, or by `kp.shutdown()` over MPI or TensorFlow.

    Costs a few all-gathers of some kilobytes the first time, and no collective later.
    """
    if seed not in ("shared", "own"):
        raise ValueError(f"keras-par: seed={seed!r} is unknown, use 'shared' or 'own'.")
    refuse_workers()
    first = not world.is_started()
    install()
    communicator = start(engine)
    if first:
        failures.start(communicator)
        atexit.register(failures.leave_together)
        share(communicator, seed)
        tell_versions(communicator)
        sys.excepthook = tell_before(sys.excepthook)


def shutdown() -> None:
    """Leaves the job, which happens by itself at exit. Other ranks that still wait for this one get an error.

    Over Gloo `kp.init()` may start a new job of the same ranks afterwards; over MPI and TensorFlow it cannot.

    Example:
        ```python
        kp.init()
        is_first = kp.rank() == 0
        kp.shutdown()  # from here on each process is by itself
        is_first  # -> True on rank 0, False on rank 1
        ```

    Raises:
        RuntimeError: it is called within `fit` or its kin, where other ranks wait for this one.

    Costs no collective.
    """
    if world.is_started() and world.current().size > 1 and (call := CALLS[rank_heartbeat.current().page.call]):
        raise RuntimeError(f"keras-par: kp.shutdown() was called within {call}, where ranks wait: call it afterwards.")
    failures.tell_done()
    world.stop()


def rank() -> int:
    """This process's number among all ranks, from 0.

    Example:
        ```python
        kp.init()
        if kp.rank() == 0:
            print("once in the whole job")
        kp.rank()  # -> 0 on rank 0, 1 on rank 1
        ```

    Returns:
        A number from 0 to `kp.size() - 1`.

    Raises:
        RuntimeError: `kp.init()` was not called.

    Costs no collective.
    """
    return world.current().rank


def size() -> int:
    """Number of ranks in the job.

    Example:
        ```python
        kp.init()
        batch_size = 32 * kp.size()  # of a global batch, with 32 rows on each rank
        batch_size  # -> 64
        ```

    Returns:
        A number, 1 without a launcher.

    Raises:
        RuntimeError: `kp.init()` was not called.

    Costs no collective.
    """
    return world.current().size


def local_rank() -> int:
    """This process's number among the ranks of its host, from 0.

    Example:
        ```python
        kp.init()
        if kp.local_rank() == 0:
            np.save("table.npy", np.zeros(4))  # once on each host
        kp.barrier()
        np.load("table.npy").shape  # -> (4,)
        ```

    Returns:
        A number from 0 to `kp.local_size() - 1`.

    Raises:
        RuntimeError: `kp.init()` was not called.

    Costs no collective.
    """
    return world.current().local_rank


def local_size() -> int:
    """Number of ranks on this host.

    Example:
        ```python
        import os

        kp.init()
        num_workers = max(1, os.cpu_count() // kp.local_size())  # this rank's share of the host's cores
        kp.local_size()  # -> 2
        ```

    Returns:
        A number from 1 to `kp.size()`.

    Raises:
        RuntimeError: `kp.init()` was not called.

    Costs no collective.
    """
    return world.current().local_size


def barrier() -> None:
    """Returns once every rank has called it.

    Example:
        ```python
        kp.init()
        if kp.rank() == 0:
            np.save("mean.npy", np.ones(3))
        kp.barrier()  # the file is there
        np.load("mean.npy").tolist()  # -> [1.0, 1.0, 1.0]
        ```

    Raises:
        RuntimeError: `kp.init()` was not called.

    Costs one all-reduce of a scalar.
    """
    world.current().barrier("kp.barrier")


def local_batch_size(batch_size: int) -> int:
    """This rank's rows of a global batch of so many.

    Example:
        ```python
        with kp.DataParallel().scope():
            inputs = keras.Input((5, 1), batch_size=kp.local_batch_size(64))
            model = keras.Model(inputs, keras.layers.LSTM(4, stateful=True)(inputs))
        model.input_shape  # -> (32, 5, 1)
        kp.local_batch_size(65)  # -> 32 on rank 0, 33 on rank 1
        ```

    For scripts that make noise of a constant shape in a `train_step`, and for layers that want the batch size when they
    are made, as stateful RNNs do. Where the script knows the batch, `ops.shape(x)[0]` says it without this. Works
    inside of a step, under an active strategy, and without one, where all ranks have other rows.

    Args:
        batch_size: rows of a batch on all ranks together, as `fit` takes it.

    Returns:
        A number of rows, all of them before `kp.init()`. It may be 0 where a batch has fewer rows than there are ranks.

    Costs no collective.
    """
    step, strategy = steps.current(), keras.distribution.distribution()
    if step is None and not world.is_started():
        return batch_size
    if step is not None:
        group = step.communicator
    else:
        group = world.current() if strategy is None else bindings.Binding(strategy, Options()).data
    start, stop = row_range(batch_size, group.size, group.rank)
    return stop - start


@contextlib.contextmanager
def independent() -> Iterator[None]:
    """Within it Keras is what it is in one process: models are made, trained and used on this rank alone.

    Example:
        ```python
        with kp.DataParallel().scope():
            model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
            model.compile("adam", "mse")
        loss = None
        if kp.rank() == 0:
            with kp.independent():
                loss = model.evaluate(np.ones((100, 8)), np.ones((100, 1)))  # the other ranks need not call it
        loss is None  # -> False on rank 0, True on rank 1
        ```

    Also a model that was compiled under a strategy, unless its variables are divided, is then used without the other
    ranks. Trained within, it differs from theirs afterwards.

    Returns:
        A context manager, to be used by `with`.

    Costs no collective.
    """
    with bindings.independent(), runs.hidden(), without_distribution():
        yield


def run_on_rank_0(function: Callable[[], Any], model: keras.Model) -> Any:
    """Calls a function on rank 0 only, for which a model that the ranks divide is whole; for what writes a model.

    Example:
        ```python
        inputs = keras.Input((8,))
        with kp.DataParallel(zero=3, zero_min_kb=0).scope():
            model = keras.Model(inputs, keras.layers.Dense(1)(inputs))
        whole = kp.run_on_rank_0(lambda: [weight.numpy() for weight in model.weights], model)
        whole and whole[0].shape  # -> (8, 1) on rank 0, None on rank 1
        ```

    A divided variable that the function reads is gathered on rank 0 at that moment, and one that it assigns gets its
    shards on all ranks; the others only take part in this. Of a variable that each rank holds, rank 0's copy is read
    and changed. Within the function Keras is what it is in one process, as within `kp.independent`.

    Args:
        function: takes no arguments. Rank 0's is called.
        model: which the function uses, the same on every rank. Rank 0 can have no others that are divided.

    Returns:
        What the function returns on rank 0, None on other ranks.

    Raises:
        ValueError: on every rank, if the function raised one, or the ranks' models differ.
        RuntimeError: on every rank, if the function raised something else; on this rank, if another has left the job.

    Costs four all-gathers of a few bytes, and for each divided variable that is read or assigned a broadcast of a
    number, besides an all-gather for each divided dim or a broadcast of each shard.
    """
    if not bindings.is_distributed() or bindings.is_independent():
        return function()

    def alone():
        with independent():
            return function()

    return together(model, "kp.run_on_rank_0", alone)


def init_for(options: Options) -> None:
    """`kp.init()` with sums by the way that the options want. Warns of options that do nothing.

    Raises:
        ValueError: sums cannot go through shared memory, though the options insist on it; or hosts have unequal numbers
            of ranks, though these are to divide what `zero` divides.
    """
    init()
    for name in ("zero_min_kb", "zero_ranks"):
        if getattr(options, name) != getattr(Options, name) and not options.zero:
            warnings.warn(
                f"keras-par: {name}={getattr(options, name)!r} is ignored, because zero is 0: give zero=1, 2 or 3, or "
                f"leave {name} out.",
                stacklevel=4,
            )
    if options.zero_ranks == OF_A_HOST:
        numbers = gather_or_raise(world.current(), "kp.local_sizes", world.current().local_size, None)
        if len(set(numbers)) > 1:
            raise AgreedValueError(
                f"keras-par: zero_ranks='{OF_A_HOST}' cannot be, because hosts have {min(numbers)} to {max(numbers)} "
                "ranks: start as many on each, or give a number."
            )
    why = world.current().no_shared_memory
    if options.reduce_by == "shared_memory" and why is not None:
        raise AgreedValueError(
            f"keras-par: reduce_by='shared_memory' cannot be, because {why}: leave it out, or use 'engine'."
        )


def refuse_workers() -> None:
    """Refuses to start the job in a worker of a rank's, which would take the rank's place a second time.

    Raises:
        RuntimeError: multiprocessing has started this process within a rank.
    """
    parent, variable = multiprocessing.parent_process(), rank_variables.told()
    is_worker = parent is not None or multiprocessing.current_process().name != "MainProcess"  # known before the parent
    if is_worker and variable is not None and was_given(parent.pid if parent else os.getppid(), variable):
        raise RuntimeError(
            f"keras-par: kp.init() was called in the worker '{multiprocessing.current_process().name}', which "
            "multiprocessing has started and which is no rank: put kp.init() and all that follows below "
            "\"if __name__ == '__main__':\", since workers import the script again."
        )


def was_given(pid: int | None, variable: str) -> bool:
    """True if a process was started with an environment variable, or is gone."""
    try:
        given = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return True
    return any(each.startswith(f"{variable}=".encode()) for each in given)


def tell_versions(communicator: Communicator) -> None:
    """Lets the launcher know what computes here, for the report."""
    versions = {"tensorflow": tf.__version__, "keras": keras.__version__}
    if communicator.engine in ("mpi", "gloo"):
        versions["horovod"] = importlib.metadata.version("horovod")
    rank_heartbeat.current().tell("about", versions=versions)


def tell_before(hook):
    """An excepthook that lets the other ranks know why this one ends, then does what `hook` does.

    Where all ranks end together because the user asked for it, it prints the sentence that says so.
    """

    def replacement(kind, error, traceback):
        if isinstance(error, KeyboardInterrupt) and str(error).startswith("keras-par: "):
            return print(error, file=sys.stderr)
        rank_heartbeat.current().fail()
        if isinstance(error, Exception):
            told = failures.explain(error)
            if isinstance(told, failures.AgreedError):
                return hook(type(told), told, traceback)
            if told is not error:
                told.__cause__ = error
                return hook(type(told), told, told.__traceback__)
        return hook(kind, error, traceback)

    return replacement
