"""Lets ranks of a shell loop, torchrun or srun find each other, and tells Horovod what its launcher would."""

import errno
import heapq
import http.client
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

from keras_par.base.addresses import lost_in_gloo, own_address
from keras_par.base.rendezvous import Handler, RendezvousServer
from keras_par.base.slots import Slot, slots, variables
from keras_par.job import launch_environment
from keras_par.job.launch_environment import MeetingPoint

ASK_SECONDS = 5.0  # how long an answer may take
PAUSE_SECONDS, ASKS_A_SECOND = 0.2, 500  # between two questions of a rank; of all ranks together, where there are many
HEARD_SECONDS = 1.0  # how long rank 0 stays after a refusal, so that the others hear it too
PATH = "/keras-par/ranks"
MOST_BYTES = 2**14  # that a rank says of itself
MOST_NAMED = 8  # ranks that have not come


def join(launched: launch_environment.Launch) -> None:
    """Where nobody has connected the ranks, waits for all and sets the variables by which Horovod's ranks do so.

    Raises:
        RuntimeError: the ranks do not make one job or did not all come in time, or Horovod does not load.
    """
    if launched.rank is None:
        return
    if launched.engine == "gloo":
        from keras_par.comm import horovod

        horovod.load(launched.engine)
    meeting = launch_environment.meeting_point(os.environ)
    os.environ.update(meet(launched.rank, launched.size, meeting, by_gloo=launched.engine == "gloo"))


def meet(rank: int, size: int, meeting: MeetingPoint, host: str = "", by_gloo: bool = True) -> dict[str, str]:
    """The HOROVOD_* variables of `rank`, once all ranks have called this.

    Rank 0 keeps Horovod's own rendezvous server at the meeting point as long as its process lives. Ranks tell each
    other the names of their hosts: HOROVOD_HOSTNAME if set, else the system's.

    Raises:
        RuntimeError: as `join`.
    """
    host = host or os.environ.get("HOROVOD_HOSTNAME") or socket.gethostname()
    entry: dict[str, Any] = {"rank": rank, "size": size, "host": host, "process": uuid.uuid4().hex}
    entry["own_address"] = own_address()
    entry["engine"] = "gloo" if by_gloo else "tensorflow"
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


class RegisterHandler(Handler):
    """Answers a rank that says it has come, too."""

    server: "Register"

    def do_POST(self) -> None:  # noqa: N802
        if self.path != PATH:
            return self.answer(http.client.NOT_FOUND)
        entry = entry_of(self.content(MOST_BYTES))
        told = self.server.enter(**entry, reached=self.connection.getsockname()[0])
        return self.answer(http.client.OK, json.dumps(told).encode())


class Register(RendezvousServer):
    """Rank 0's: the rendezvous server at the meeting point, which also knows the ranks that have come so far.

    Args:
        size: rank 0's number of ranks.
        meeting: where this is.

    Raises:
        RuntimeError: the port is not free.
    """

    def __init__(self, size: int, meeting: MeetingPoint):
        self._size, self._meeting = size, meeting
        self._entries: dict[int, dict[str, str]] = {}  # of the ranks that have come
        self._missing = set(range(size))
        self._told: dict[str, Any] | None = None  # what every rank of the job hears: all are there, or why not
        self._slots: list[Slot] = []  # once all are there
        self._entering = threading.Lock()
        is_private = meeting.address in ("127.0.0.1", "localhost")
        try:
            super().__init__("127.0.0.1" if is_private else "", meeting.port, size, RegisterHandler)
        except OSError as error:
            raise RuntimeError(explain(error, meeting)) from None

    def enter(self, rank: int, size: int, **entry: str) -> dict[str, Any]:
        """Notes that a rank has come; the same process may ask again.

        Args:
            rank: its number.
            size: its number of ranks.
            entry: "process": its process's own sign, its "host", the "own_address" where that finds its own name, the
                "engine" that shall connect it, and how it was "reached": rank 0's address.

        Returns:
            {"missing": the first ranks, "others": how many more}, {"slot": the rank's, "address": rank 0's as the
            others reach it}, or {"refused": sentence}. None of it grows with the number of ranks.
        """
        with self._entering:
            if size != self._size:
                return self._refuse_size(rank, size)
            if self._entries.setdefault(rank, entry)["process"] != entry["process"]:
                return {"refused": self._twice(rank)}
            self._missing.discard(rank)
            if self._told is None and self._missing:
                named = heapq.nsmallest(MOST_NAMED, self._missing)
                return {"missing": named, "others": len(self._missing) - len(named)}
            self._told = self._told or self._all_there()
            return self._told if "refused" in self._told else self._told | {"slot": vars(self._slots[rank])}

    def refuse(self, sentence: str) -> None:
        """Ends the job for all ranks that are waiting."""
        with self._entering:
            self._told = self._told or {"refused": sentence}

    def _refuse_size(self, rank: int, size: int) -> dict[str, Any]:
        named = self._meeting.starter.size
        refused = {
            "refused": f"keras-par: rank {rank} was started with {named}={size} but rank 0 at {self._meeting} with "
            f"{named}={self._size}: start all ranks of a job with the same {named}, and each job with its own "
            "MASTER_PORT."
        }
        self._told = self._told or refused
        return refused

    def _twice(self, rank: int) -> str:
        named = self._meeting.starter.rank
        return (
            f"keras-par: another process has {named}={rank} already at {self._meeting}: give every process of a job "
            f"its own {named} from 0 to {self._size - 1}, and each job its own MASTER_PORT."
        )

    def _all_there(self) -> dict[str, Any]:
        entries = [self._entries[rank] for rank in range(self._size)]
        away = [entry["reached"] for entry in entries if not entry["reached"].startswith("127.")]
        hosts = [entry["host"] for entry in entries]
        by_gloo = [entry["engine"] == "gloo" for entry in entries]
        if any(by_gloo) and not all(by_gloo):
            return {
                "refused": f"keras-par: Horovod would connect rank {by_gloo.index(True)}, and TensorFlow rank "
                f"{by_gloo.index(False)}: install the same on all hosts, or set KERAS_PAR_ENGINE for all ranks alike."
            }
        for entry in entries if by_gloo[0] and away and len(set(hosts)) > 1 else ():
            if lost := lost_in_gloo(entry["host"], entry["own_address"]):
                return {"refused": f"keras-par: {lost}"}
        self._slots = slots(hosts)
        self.expect(self._slots)
        return {"address": away[0] if away else "127.0.0.1"}


def entry_of(content: bytes) -> dict[str, Any]:
    """What a rank says of itself.

    Raises:
        ValueError: no rank would say that.
    """
    entry = json.loads(content)
    names = {"rank": int, "size": int, "process": str, "host": str, "own_address": str, "engine": str}
    if not isinstance(entry, dict) or {name: type(value) for name, value in entry.items()} != names:
        raise ValueError(entry)
    if not 0 <= entry["rank"] < entry["size"]:
        raise ValueError(entry)
    return entry


def explain(error: OSError, meeting: MeetingPoint) -> str:
    rank, port = meeting.starter.rank, meeting.starter.port
    if error.errno == errno.EADDRINUSE:
        return (
            f"keras-par: rank 0 found port {meeting.port} busy, by another job or by a second process with {rank}=0: "
            f"set {port} to a free port, the same on all ranks, and give each process its own {rank}."
        )
    return f"keras-par: rank 0 cannot listen on port {meeting.port} ({error.strerror}): set {port} to another one."
