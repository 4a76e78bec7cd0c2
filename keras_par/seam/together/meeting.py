"""Where calls of trainer methods on all ranks meet; of calls in several threads, those that belong together."""

import time
from typing import Any

from keras_par.comm.agreement import exchange
from keras_par.comm.communicator import Communicator
from keras_par.comm.turns import name_of_thread, turns


def meet(
    communicator: Communicator, about: dict[str, Any], complaint: str | None, model_name: str, rows: int | None
) -> list[dict[str, Any]]:
    """All ranks' `about`, once all are in the same call.

    Where threads make calls, rank 0's order is that of all ranks: another rank's thread gives way until the thread has
    come that makes rank 0's call, of a model of this name with these rows.

    Args:
        communicator: of all ranks.
        about: the call, as JSON can carry it; "call" is what it is.
        complaint: about it, or None.
        model_name: that of the model.
        rows: a checksum of what the call is given; None if it may differ between ranks, or cannot be known.

    Raises:
        ValueError: on every rank, if a rank has a complaint, or no thread comes to the call that rank 0 makes.

    Costs two all-gathers of a few bytes each time.
    """
    thread = name_of_thread()
    own = [about["call"], model_name, thread if rows is None else rows]
    turn = None if turns.is_nested else {"thread": thread, "what": own}
    since = time.monotonic()
    while True:
        answers = exchange(communicator, "kp.run", {**about, "turn": turn}, complaint)
        found = [answer.get("turn") for answer in answers]
        if None in found or not any(each["thread"] for each in found):
            return answers
        first = found[0]["what"]
        if all(each["what"] == first for each in found):
            return answers
        if own != first:
            turns.give_way(turns.deadline(since))
            if time.monotonic() >= turns.deadline(since):
                complaint = (
                    f"a thread has come to {about['call']} of '{model_name}' but no thread to {first[0]} of "
                    f"'{first[1]}', which a thread of rank 0 has come to: let the threads of all ranks make the same "
                    "calls with the same data, of models of the same names"
                )
