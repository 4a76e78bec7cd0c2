"""Holds this process's one communicator, through which all other rooms talk to the ranks of its job."""

from keras_par.comm.communicator import Communicator

_active: Communicator | None = None


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
        raise RuntimeError("keras-par: call kp.init() first.")
    return _active


def is_started() -> bool:
    return _active is not None


def replace(communicator: Communicator) -> Communicator:
    """Makes `communicator` the active one and returns the one before, for counting collectives."""
    global _active
    before, _active = current(), communicator
    return before


def stop() -> None:
    """Leaves the job; collectives that other ranks are waiting in fail instead of hanging."""
    global _active
    if _active is not None:
        _active.shutdown()
        _active = None
