"""Tells every rank which rank failed first and why, over sockets that do not depend on the collectives."""

import contextlib
import hashlib
import threading
import time
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import tensorflow as tf

from keras_par.base.addresses import own_addresses
from keras_par.base.sentence import error_of
from keras_par.comm import tensorflow_server, world
from keras_par.comm.agreed import AgreedError as AgreedError
from keras_par.comm.agreed import AgreedValueError
from keras_par.comm.communicator import Communicator
from keras_par.job import rank_heartbeat
from keras_par.job.exchange import Exchange, ask
from keras_par.job.step_clock import clock
from keras_par.job.waits import Comparison, Wait, WaitWatch

ALIKE_SECONDS = 2.0  # how long a failing rank waits to see whether every rank fails alike
HEARD_SECONDS = 3.0  # how long it then stays, so that the others can ask what happened
MOST_LETTERS = 10_000  # of a failure that is told
ASKS_A_SECOND = 1000  # of all ranks together, where there are many
MOST_TOLD = 2  # failures, and ranks that have left: the first one that is not a rank's own is among them
LEAVE_SECONDS = 10.0  # how long a rank that is done waits for those that are not

# What operations say when another rank has left the job: by shutdown, by losing its connection, or by its end.
SIGNS_OF_LEAVING = (
    *("horovod has been shut down", "closed by peer", "connection reset", "timed out waiting"),
    *("has left the job", "communication was shut down", "collective ops is aborted"),
)


@dataclass(frozen=True)
class Known:
    """What a rank is told of all: the first failures, as (rank, failure), how many there are, and who has left."""

    first: list[tuple[int, str]] = field(default_factory=list)
    count: int = 0
    is_alike: bool = True  # all failures have the same message
    left: list[int] = field(default_factory=list)  # the first ranks that have ended without a failure, in their order
    num_missing: int = 0  # ranks that are not about to leave
    difference: str | None = None  # what ranks give otherwise to one collective, in a sentence
    awaited: list[tuple[str, int]] = field(default_factory=list)  # in what ranks wait for all, by name and number


class FailureBoard:
    """A list of failures kept by rank 0, which every rank can append to and read.

    Creating it costs one all-gather of a few bytes; after that no collective is used.
    """

    def __init__(self, communicator: Communicator):
        self._rank, self._size = communicator.rank, communicator.size
        self._round = 0  # grows when all ranks have failed alike and may go on
        self._rounds: dict[int, dict[int, str]] = defaultdict(dict)  # rank 0's: failures by rank, in order of arrival
        self._messages: dict[int, set[str]] = defaultdict(set)  # rank 0's: of each round
        self._heard: set[int] = set()  # rank 0's: who has read that another has failed or left
        self._left: list[int] = []  # rank 0's: who has left without a failure, in the order of leaving
        self._done: set[int] = set()  # rank 0's: who is about to leave
        self._waits = Comparison()  # rank 0's: what ranks wait in
        self._lock = threading.Lock()
        self._server: Exchange | None = None
        own = None
        if self._rank == 0:
            one_host = communicator.local_size == communicator.size
            self._server = Exchange(one_host, self._size, lambda request: self._note(**request), "kp-failures")
            own = ["127.0.0.1"] if one_host else own_addresses(), self._server.port, self._server.key
        self._hosts, self._port, self.token = communicator.all_gather_object(own, "kp.failures")[0]
        if self._rank > 0:
            self.tell()  # which finds the address that leads there

    def tell(self, **what: Any) -> Known:
        """Lets rank 0 know what `_note` takes, or nothing; returns what is known, nothing if rank 0 is gone."""
        request = {"rank": self._rank, "round_": self._round, **what}
        if self._server:
            return self._note(**request)
        for host in self._hosts:
            with contextlib.suppress(OSError):
                if (answer := ask(host, self._port, self.token, request)) is not None:
                    self._hosts = [host]
                    return Known(**answer | {"first": [tuple(entry) for entry in answer["first"]]})
        return Known()

    def leave(self) -> None:
        """Notes that this rank ends without a failure.

        Rank 0 then stays until all others have left, too, or have read it, at most HEARD_SECONDS.
        """
        self.tell(has_left=True)
        if self._server:
            world.stop()  # so that the others, which may wait for this rank in a collective, come and ask
            self.wait_until_heard()

    def report(self, failure: str) -> Known:
        """Tells a failure of this rank; what is known once every rank has failed, or after ALIKE_SECONDS.

        Where all have failed they may go on, and a new round begins without failures.
        """
        known = self.tell(failure=failure[:MOST_LETTERS])
        deadline = time.monotonic() + ALIKE_SECONDS
        while known.count < self._size and (rest := deadline - time.monotonic()) > 0:
            time.sleep(min(max(0.1, self._size / ASKS_A_SECOND), rest))
            known = self.tell()
        if known.count == self._size:
            self._round += 1
        return known

    def wait_until_heard(self) -> None:
        """On rank 0, keeps the board open until every rank has read it or has left, at most HEARD_SECONDS."""
        deadline = time.monotonic() + HEARD_SECONDS
        while self._server and len(self._heard.union(self._left)) < self._size and time.monotonic() < deadline:
            time.sleep(0.02)

    def wait_until_done(self) -> None:
        """Returns once every rank has called it or rank 0 has left, at the latest after LEAVE_SECONDS.

        It returns, too, if a rank waits in a collective to which this one will not come.
        """
        deadline = time.monotonic() + LEAVE_SECONDS
        while (known := self.tell(is_done=True)).num_missing and time.monotonic() < deadline:
            if not all(clock.has_come_to(*each) for each in known.awaited):
                return
            time.sleep(max(0.02, self._size / ASKS_A_SECOND))

    def _note(
        self,
        rank: int,
        round_: int,
        failure: str | None = None,
        is_done: bool = False,
        has_left: bool = False,
        waits: list[Wait] | None = None,
    ) -> Known:
        """Takes in what a rank has told, and answers it."""
        with self._lock:
            known, messages = self._rounds[round_], self._messages[round_]
            if failure is not None:
                messages.add(known.setdefault(rank, failure))
            if has_left:
                self._left.append(rank)
            if is_done:
                self._done.add(rank)
            if waits is not None:
                self._waits.note(rank, waits)
            if known or self._left:
                self._heard.add(rank)
            first, left = list(islice(known.items(), MOST_TOLD)), self._left[:MOST_TOLD]
            about = first, len(known), len(messages) < 2, left, self._size - len(self._done)
            return Known(*about, self._waits.difference, self._waits.awaited)


_board: FailureBoard | None = None


def start(communicator: Communicator) -> None:
    """Opens the board of a job with several ranks. Costs two all-gathers of a few bytes.

    Where TensorFlow connects them, they are told if they give other tensors to one collective.
    """
    global _board
    if communicator.size > 1:
        _board = board = FailureBoard(communicator)
        if communicator.engine == "tensorflow":

            def tell(waits: list[Wait] | None) -> str | None:
                return board.tell(**{} if waits is None else {"waits": waits}).difference

            clock.waits = WaitWatch(communicator.size, clock.collectives, tell, tensorflow_server.end_collectives)


def job() -> str | None:
    """What tells this job from others, the same on all ranks; None for a job of one rank."""
    return None if _board is None else hashlib.sha256(_board.token.encode()).hexdigest()[:16]


def leave_together() -> None:
    """Tells the others that this rank ends. Costs no collective.

    Where ranks may be in collectives of a group, it waits for the others first, LEAVE_SECONDS at most: the first that
    leaves ends all collectives. A rank that has failed waits for nobody.
    """
    if _board is None or not world.is_started():
        return
    if world.current().has_groups and not rank_heartbeat.current().page.failed:
        _board.wait_until_done()
    if not _board.tell().count:
        _board.leave()


def tell_done() -> None:
    """Tells ranks that wait at their end for all others that this one needs them no more. Costs no collective."""
    if _board is not None and world.is_started():
        _board.tell(is_done=True)


def explain(error: Exception) -> Exception:
    """Shares `error` with the other ranks and returns what this rank should raise.

    A rank with an error of its own reports it. If within ALIKE_SECONDS every rank has failed, all may go on and
    nothing else happens; otherwise this rank leaves the job, so that the others end at once instead of waiting
    in a collective. A rank whose error only says that another one left gets a RuntimeError naming that rank, or a
    ValueError that names what ranks have given otherwise to one collective.
    Called again with an error it has seen, it returns it unchanged.
    """
    if _board is None or getattr(error, "_keras_par_told", False):
        return error
    known = _board.tell() if is_consequence(error) else Known()
    if known.difference is not None:
        error = AgreedValueError(known.difference)
    tell_launcher(error, isinstance(error, AgreedError))
    told = error
    if is_consequence(error):
        told = RuntimeError(name_culprit(known.first, known.left, _board._rank))
    elif not isinstance(error, AgreedError):
        known = _board.report(summary(error))
        if known.count == _board._size:
            if known.is_alike:
                tell_launcher(error, on_all_ranks=True)
        else:
            world.stop(
                f"keras-par: this rank failed before other ranks did ({summary(error)}), which has ended its job for "
                "all of them: let the error end the script, and start it again, as keras-par run --max-restarts does."
            )
            _board.wait_until_heard()
    told._keras_par_told = True  # type: ignore[attr-defined]
    return told


def tell_launcher(error: Exception, on_all_ranks: bool) -> None:
    about = {"message": summary(error), "is_consequence": is_consequence(error), "on_all_ranks": on_all_ranks}
    rank_heartbeat.current().tell("failure", **about)


def is_consequence(error: Exception) -> bool:
    """True if `error` says that a collective failed, which happens when another rank has left."""
    text = str(error).lower()
    engines = ("horovod", "gloo", "keras-par's shared memory", "collective ops is aborted")
    is_from_engine = isinstance(error, tf.errors.OpError) and any(engine in text for engine in engines)
    return is_from_engine and any(sign in text for sign in SIGNS_OF_LEAVING)


def name_culprit(failures: list[tuple[int, str]], departures: list[int], own_rank: int) -> str:
    others = [failure for failure in failures if failure[0] != own_rank]
    left = [rank for rank in departures if rank != own_rank]
    if others:
        rank, message = others[0]
        return f"keras-par: rank {rank} failed first, so this rank stops: {message}"
    if left:
        return (
            f"keras-par: rank {left[0]} left the job without an error while this rank went on, so this rank stops: "
            "look for a sys.exit, or an end of the script, that only some ranks reach."
        )
    return (
        "keras-par: another rank ended without saying why, so this rank stops: look for its last output, or for a "
        "process killed by the system (out of memory)."
    )


def summary(error: Exception) -> str:
    """The error as one line."""
    return error_of(type(error).__name__, str(error))
