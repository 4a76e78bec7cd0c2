"""Holds this process's one communicator, through which all other rooms talk to the ranks of its job."""

from keras_par.comm.communicator import Communicator

ONCE = {"mpi": "MPI", "tensorflow": "TensorFlow"}  # engines that a process starts once

_active: Communicator | None = None
_no_return: str | None = None  # why this process, which has left its job, cannot join one again


def begin(communicator: Communicator) -> None:
    """Makes `communicator` the active one where there is none yet."""
    global _active
    assert _active is None
    _active = communicator


def current() -> Communicator:
    """The active communicator.

    Raises:
        RuntimeError: communication has not been started.
    """
    if _active is None:
        require_may_begin()
        raise RuntimeError("keras-par: call kp.init() first.")
    return _active


def require_may_begin() -> None:
    """Says why this process cannot join a job, if it cannot.

    Raises:
        RuntimeError: it has left its job for good.
    """
    if _no_return is not None:
        raise RuntimeError(_no_return)


def is_started() -> bool:
    return _active is not None


def replace(communicator: Communicator) -> Communicator:
    """Makes `communicator` the active one and returns the one before, for counting collectives."""
    global _active
    before, _active = current(), communicator
    return before


def stop(no_return: str | None = None) -> None:
    """Leaves the job; collectives that other ranks are waiting in fail instead of hanging.

    Args:
        no_return: a sentence that says why it is for good. It always is over MPI and TensorFlow, which no process
            starts twice.
    """
    global _active, _no_return
    if _active is not None:
        if (name := ONCE.get(_active.engine)) is not None:
            no_return = no_return or (
                f"keras-par: this process has left its job by kp.shutdown(), and {name} starts only once in a process: "
                "call kp.shutdown() at the end, or start the job over Gloo (keras-par run --engine gloo)."
            )
        _no_return = no_return
        _active.shutdown()
        _active = None
