"""Makes the ranks raise the same error together, so that a rank that finds something wrong leaves none waiting."""

from typing import Any

from keras_par.comm.agreed import AgreedRuntimeError as AgreedRuntimeError
from keras_par.comm.agreed import AgreedValueError as AgreedValueError
from keras_par.comm.communicator import Communicator


def gather_or_raise(communicator: Communicator, name: str, value: Any, complaint: str | None) -> list[Any]:
    """All ranks' `value`s, unless one has a complaint: then every rank raises the first one.

    Args:
        communicator: who is asked.
        name: the collective's name.
        value: anything JSON can carry.
        complaint: one sentence about what is wrong on this rank, or None.

    Raises:
        AgreedValueError: on every rank, with the complaint of the lowest rank that has one. Where not all ranks
            have it, it names that rank.

    Costs two all-gathers of a few bytes.
    """
    answers = communicator.all_gather_object([value, complaint], name)
    complaints = [answer[1] for answer in answers]
    first = next((rank for rank, text in enumerate(complaints) if text), None)
    if first is not None:
        where = "" if all(complaints) else f" (on rank {first})"
        raise AgreedValueError(f"keras-par: {complaints[first]}{where}")
    return [answer[0] for answer in answers]
