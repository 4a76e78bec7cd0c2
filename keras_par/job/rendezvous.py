"""Lets ranks of a shell loop, torchrun or srun find each other, and tells Horovod what its launcher would."""

import http.client
import json
import os
import socket
import time
import uuid
from collections.abc import Callable
from typing import Any

from keras_par.base.addresses import own_address
from keras_par.base.slots import Slot, variables
from keras_par.job import launch
from keras_par.job.launch import MeetingPoint
from keras_par.job.register import PATH, Register

ASK_SECONDS = 5.0  # how long an answer may take
PAUSE_SECONDS, ASKS_A_SECOND = 0.2, 500  # between two questions of a rank; of all ranks together, where there are many
HEARD_SECONDS = 1.0  # how long rank 0 stays after a refusal, so that the others hear it too


def join(launched: launch.Launch) -> None:
    """Where nobody has connected the ranks, waits for all and sets the variables by which Horovod does.

    Raises:
        RuntimeError: the ranks do not make one job or did not all come in time, or Horovod does not load.
    """
    if launched.rank is None:
        return
    from keras_par.comm import horovod

    horovod.load(launched.engine)
    os.environ.update(meet(launched.rank, launched.size, launch.meeting_point(os.environ)))


def meet(rank: int, size: int, meeting: MeetingPoint, host: str = "") -> dict[str, str]:
    """The HOROVOD_* variables of `rank`, once all ranks have called this.

    Rank 0 keeps Horovod's own rendezvous server at the meeting point as long as its process lives. Ranks tell each
    other the names of their hosts: HOROVOD_HOSTNAME if set, else the system's.

    Raises:
        RuntimeError: as `join`.
    """
    host = host or os.environ.get("HOROVOD_HOSTNAME") or socket.gethostname()
    entry: dict[str, Any] = {"rank": rank, "size": size, "host": host, "process": uuid.uuid4().hex}
    entry["own_address"] = own_address()
    if rank > 0:
        found = wait(lambda: ask(meeting, entry), rank, size, meeting)
    else:
        register = Register(size, meeting)
        try:
            found = wait(lambda: register.enter(**entry, reached="127.0.0.1"), rank, size, meeting)
        except BaseException as error:
            register.refuse(str(error) or "keras-par: rank 0 was interrupted while it waited for other ranks.")
            time.sleep(HEARD_SECONDS)
            register.close()
            raise
    return variables(Slot(**found["slot"]), found["address"], meeting.port)


def wait(enter: Callable[[], dict[str, Any]], rank: int, size: int, meeting: MeetingPoint) -> dict[str, Any]:
    """Enters the job's register again and again until it is complete, and returns what it says then."""
    deadline = time.monotonic() + meeting.seconds
    missing: str | None = None  # not known before the first answer
    while True:
        try:
            answer = enter()
        except OSError as error:
            if missing is not None and isinstance(error, ConnectionRefusedError):
                raise RuntimeError(
                    f"keras-par: rank 0 has ended, and {missing} of {size} had not come to {meeting} by "
                    "then: look at the last output of rank 0."
                ) from None
            reason = f" ({error})"
        else:
            if "slot" in answer:
                return answer
            if "refused" in answer:
                raise RuntimeError(answer["refused"])
            missing, reason = name_ranks(answer["missing"], answer["others"]), ""
        if time.monotonic() > deadline:
            raise RuntimeError(
                f"keras-par: {missing or 'rank 0'} of {size} did not come to {meeting} within "
                f"{meeting.seconds:g} s{reason}: start a process for each {meeting.starter.rank} from 0 to {size - 1}, "
                "all with rank 0's host as MASTER_ADDR and the same MASTER_PORT."
            )
        time.sleep(max(PAUSE_SECONDS, size / ASKS_A_SECOND))


def name_ranks(ranks: list[int], others: int) -> str:
    shown = ", ".join(map(str, ranks)) + (f" and {others} more" if others else "")
    return f"rank {shown}" if len(ranks) + others == 1 else f"ranks {shown}"


def ask(meeting: MeetingPoint, entry: dict[str, Any]) -> dict[str, Any]:
    """Enters rank 0's register over the network.

    Raises:
        OSError: nobody answers there.
        RuntimeError: something else than rank 0 does.
    """
    connection = http.client.HTTPConnection(meeting.address, meeting.port, timeout=ASK_SECONDS)
    try:
        connection.request("POST", PATH, json.dumps(entry))
        response = connection.getresponse()
        if response.status != http.client.OK:
            raise ValueError(response.reason)
        return json.loads(response.read())
    except (http.client.HTTPException, ValueError) as error:
        if isinstance(error, OSError):
            raise
        raise RuntimeError(
            f"keras-par: rank {entry['rank']} found another program than rank 0 at {meeting}: set "
            f"{meeting.starter.port} to a free port, the same on all ranks."
        ) from None
    finally:
        connection.close()
