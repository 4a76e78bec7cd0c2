"""Notes which ranks of a job that nobody has connected have come, and refuses those that do not belong to the job."""

import errno
import heapq
import http.client
import json
import threading
from dataclasses import dataclass
from typing import Any

from keras_par.base.addresses import lost_in_gloo
from keras_par.base.rendezvous import Handler, RendezvousServer
from keras_par.base.slots import Slot, slots
from keras_par.job.launch import MeetingPoint

PATH = "/keras-par/ranks"
MOST_BYTES = 2**14  # that a rank says of itself
MOST_NAMED = 8  # ranks that have not come


@dataclass(frozen=True)
class Entry:
    """A rank that has come: its process's own sign, its host, where that finds its own name, and how it came."""

    process: str
    host: str
    own_address: str
    reached: str  # rank 0's address


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
        self._entries: dict[int, Entry] = {}
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
        """Notes that a rank has come, with the fields of an `Entry`; the same process may ask again.

        Returns:
            {"missing": the first ranks, "others": how many more}, {"slot": the rank's, "address": rank 0's as the
            others reach it}, or {"refused": sentence}. None of it grows with the number of ranks.
        """
        with self._entering:
            if size != self._size:
                return self._refuse_size(rank, size)
            came = Entry(**entry)
            if self._entries.setdefault(rank, came).process != came.process:
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
        away = [entry.reached for entry in entries if not entry.reached.startswith("127.")]
        hosts = [entry.host for entry in entries]
        for entry in entries if away and len(set(hosts)) > 1 else ():
            if lost := lost_in_gloo(entry.host, entry.own_address):
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
    names = {"rank": int, "size": int, "process": str, "host": str, "own_address": str}
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
