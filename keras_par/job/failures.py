"""Tells every rank which rank failed first and why, over sockets that do not depend on the collectives."""

import contextlib
import hashlib
import threading
import time
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import tensorflow as tf

from keras_par.base.addresses import own_addresses
from keras_par.base.sentence import error_of
from keras_par.comm import world
from keras_par.comm.agreed import AgreedError as AgreedError
from keras_par.comm.communicator import Communicator
from keras_par.job import heartbeat
from keras_par.job.exchange import Exchange, ask

ALIKE_SECONDS = 2.0  # how long a failing rank waits to see whether every rank fails alike
HEARD_SECONDS = 3.0  # how long it then stays, so that the others can ask what happened
MOST_LETTERS = 10_000  # of a failure that is told
ASKS_A_SECOND = 1000  # of all ranks together, where there are many
MOST_TOLD = 2  # failures, and ranks that have left: the first one that is not a rank's own is among them
LEAVE_SECONDS = 10.0  # how long a rank that is done waits for those that are not

# What operations say when another rank has left the job: by shutdown, by losing its connection, or by its end.
SIGNS_OF_LEAVING = (
    *("horovod has been shut down", "closed by peer", "connection reset", "timed out waiting"),
    *("has left the job", "communication was shut down"),
)


@dataclass(frozen=True)
class Known:
    """What a rank is told of the failures so far: the first ones, as (rank, failure), and how many there are."""

    first: list[tuple[int, str]] = field(default_factory=list)
    count: int = 0
    is_alike: bool = True  # all have the same message


class FailureBoard:
    """A list of failures kept by rank 0, which every rank can append to and read.

    Creating it costs one all-gather of a few bytes; after that no collective is used.
    """

    def __init__(self, communicator: Communicator):
        self._rank, self._size = communicator.rank, communicator.size
        self._round = 0  # grows when all ranks have failed alike and may go on
        self._rounds: dict[int, dict[int, str]] = {}  # rank 0's: each round's failures by rank, in the order of arrival
        self._messages: dict[int, set[str]] = {}  # rank 0's: of each round
        self._heard: set[int] = set()  # rank 0's: who has read a failure
        self._left: list[int] = []  # rank 0's: who has left without a failure, in the order of leaving
        self._done: set[int] = set()  # rank 0's: who is about to leave
        self._lock = threading.Lock()
        self._server: Exchange | None = None
        own = self._serve(communicator) if self._rank == 0 else None
        self._hosts, self._port, self.token = communicator.all_gather_object(own, "kp.failures")[0]
        if self._rank > 0:
            self._send(departures=self._rank)  # which finds the address that leads there

    def report(self, message: str) -> Known:
        """Appends this rank's failure; returns what is known, which is nothing if rank 0 is gone."""
        return self._ask(message[:MOST_LETTERS])

    def failures(self) -> Known:
        """What has been reported so far."""
        return self._ask(None)

    def _pause(self, seconds: float) -> None:
        """Waits before this rank asks again, the longer the more ranks may ask."""
        time.sleep(max(seconds, self._size / ASKS_A_SECOND))

    def leave(self) -> None:
        """Notes that this rank ends without a failure.

        Rank 0 then stays until all others have left, too, or have read it, at most HEARD_SECONDS.
        """
        if not self._server:
            self._send(left=self._rank)
            return
        self._note_left(self._rank)
        world.stop()  # so that the others, which may wait for this rank in a collective, come and ask
        deadline = time.monotonic() + HEARD_SECONDS
        while len(self._heard.union(self._left)) < self._size and time.monotonic() < deadline:
            time.sleep(0.02)

    def departures(self) -> list[int]:
        """The first ranks that have ended without a failure, in the order of their ends."""
        return self._tell_departures(self._rank) if self._server else self._send(departures=self._rank) or []

    def next_round(self) -> None:
        """Forgets the failures so far, once all ranks have failed alike and called this."""
        self._round += 1

    def wait_until_heard(self) -> None:
        """On rank 0, keeps a failed job's board open until every rank has read it, at most HEARD_SECONDS."""
        deadline = time.monotonic() + HEARD_SECONDS
        while self._server and self._rounds and len(self._heard) < self._size and time.monotonic() < deadline:
            time.sleep(0.05)

    def wait_until_done(self) -> None:
        """Returns once every rank has called it or rank 0 has left, at the latest after LEAVE_SECONDS."""
        deadline = time.monotonic() + LEAVE_SECONDS
        while time.monotonic() < deadline:
            missing = self._note_done(self._rank) if self._server else self._send(done=self._rank)
            if not missing:
                return
            self._pause(0.02)

    def _note_done(self, rank: int) -> int:
        """Notes that a rank is about to leave; returns how many are not."""
        with self._lock:
            self._done.add(rank)
            return self._size - len(self._done)

    def _note_left(self, rank: int) -> None:
        with self._lock:
            self._left.append(rank)

    def _tell_departures(self, rank: int) -> list[int]:
        with self._lock:
            if self._left:
                self._heard.add(rank)
            return self._left[:MOST_TOLD]

    def _answer(self, request: dict[str, Any]) -> Any:
        if "done" in request:
            return self._note_done(request["done"])
        if "left" in request:
            return self._note_left(request["left"])
        if "departures" in request:
            return self._tell_departures(request["departures"])
        return self._enter(**request)

    def _serve(self, communicator: Communicator) -> tuple[list[str], int, str]:
        one_host = communicator.local_size == communicator.size
        self._server = Exchange(one_host, self._size, self._answer, "kp-failures")
        return ["127.0.0.1"] if one_host else own_addresses(), self._server.port, self._server.key

    def _enter(self, round_: int, rank: int, failure: str | None) -> Known:
        with self._lock:
            known = self._rounds.get(round_, {})
            if failure is not None:
                known = self._rounds.setdefault(round_, known)
                self._messages.setdefault(round_, set()).add(known.setdefault(rank, failure))
            if known:
                self._heard.add(rank)
            return Known(list(islice(known.items(), MOST_TOLD)), len(known), len(self._messages.get(round_, ())) < 2)

    def _ask(self, failure: str | None) -> Known:
        if self._server:
            return self._enter(self._round, self._rank, failure)
        answer = self._send(round_=self._round, rank=self._rank, failure=failure)
        return Known(**answer | {"first": [tuple(entry) for entry in answer["first"]]}) if answer else Known()

    def _send(self, **request) -> Any:
        """Rank 0's answer to a request, None if it is gone."""
        for host in self._hosts:
            with contextlib.suppress(OSError):
                if answered := ask(host, self._port, self.token, request):
                    self._hosts = [host]
                    return answered[0]
        return None


_board: FailureBoard | None = None


def start(communicator: Communicator) -> None:
    """Opens the board of a job with several ranks. Costs two all-gathers of a few bytes."""
    global _board
    if communicator.size > 1:
        _board = FailureBoard(communicator)


def job() -> str | None:
    """What tells this job from others, the same on all ranks; None for a job of one rank."""
    return None if _board is None else hashlib.sha256(_board.token.encode()).hexdigest()[:16]


def leave_together() -> None:
    """Tells the others that this rank ends. Costs no collective.

    Where ranks may be in collectives of a group, it waits for the others first, LEAVE_SECONDS at most: the first that
    leaves ends all collectives.
    """
    if _board is None or not world.is_started():
        return
    if world.current().has_groups:
        _board.wait_until_done()
    if not _board.failures().count:
        _board.leave()


def explain(error: Exception) -> Exception:
    """Shares `error` with the other ranks and returns what this rank should raise.

    A rank with an error of its own reports it. If within ALIKE_SECONDS every rank has failed, all may go on and
    nothing else happens; otherwise this rank leaves the job, so that the others end at once instead of waiting
    in a collective. A rank whose error only says that another one left gets a RuntimeError naming that rank.
    Called again with an error it has seen, it returns it unchanged.
    """
    if _board is None or getattr(error, "_keras_par_told", False):
        return error
    tell_launcher(error, isinstance(error, AgreedError))
    if isinstance(error, AgreedError):
        told: Exception = error
    elif is_consequence(error):
        told = RuntimeError(name_culprit(_board.failures().first, _board.departures(), _board._rank))
    else:
        told = error
        known = wait_for_all(_board.report(summary(error)))
        if known.count == _board._size:
            if known.is_alike:
                tell_launcher(error, on_all_ranks=True)
            _board.next_round()
        else:
            world.stop(
                f"keras-par: this rank failed before other ranks did ({summary(error)}), which has ended its job for "
                "all of them: let the error end the script, and start it again, as keras-par run --max-restarts does."
            )
            _board.wait_until_heard()
    told._keras_par_told = True  # type: ignore[attr-defined]
    return told


def tell_launcher(error: Exception, on_all_ranks: bool) -> None:
    consequence = is_consequence(error)
    heartbeat.current().tell("failure", message=summary(error), is_consequence=consequence, on_all_ranks=on_all_ranks)


def wait_for_all(known: Known) -> Known:
    """What is known once every rank has failed, or after ALIKE_SECONDS."""
    assert _board is not None
    deadline = time.monotonic() + ALIKE_SECONDS
    while known.count < _board._size and (rest := deadline - time.monotonic()) > 0:
        time.sleep(min(max(0.1, _board._size / ASKS_A_SECOND), rest))
        known = _board.failures()
    return known


def is_consequence(error: Exception) -> bool:
    """True if `error` says that a collective failed, which happens when another rank has left."""
    text = str(error).lower()
    engines = ("horovod", "gloo", "keras-par's shared memory")
    is_from_engine = isinstance(error, tf.errors.OpError) and any(engine in text for engine in engines)
    return is_from_engine and any(sign in text for sign in SIGNS_OF_LEAVING)


def name_culprit(failures: list[tuple[int, str]], departures: list[int], own_rank: int) -> str:
    others = [failure for failure in failures if failure[0] != own_rank]
    left = [rank for rank in departures if rank != own_rank]
    if not others and left:
        return (
            f"keras-par: rank {left[0]} left the job without an error while this rank went on, so this rank stops: "
            "look for a sys.exit, or an end of the script, that only some ranks reach."
        )
    if not others:
        return (
            "keras-par: another rank ended without saying why, so this rank stops: look for its last output, "
            "or for a process killed by the system (out of memory)."
        )
    rank, message = others[0]
    return f"keras-par: rank {rank} failed first, so this rank stops: {message}"


def summary(error: Exception) -> str:
    """The error as one line."""
    return error_of(type(error).__name__, str(error))
