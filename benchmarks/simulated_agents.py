"""Plays the agents of thousands of ranks in one process: they speak to the launcher as real ones do, and run nothing.

    python -m benchmarks.simulated_agents 10000 crash FILE

A rank looks at itself each second, as an agent does, and tells its state when `Beats` has it due. What it sends and is
told is counted by kinds; moments and counts go to FILE, as lines of JSON.
"""

import argparse
import heapq
import json
import os
import secrets
import selectors
import socket
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from keras_par.agent import wire
from keras_par.agent.states import Beats, Exit, State, brief
from keras_par.base.addresses import own_address
from keras_par.base.limited_server import NONCE_BYTES, PROOF_BYTES, proof
from keras_par.base.version import installed

SCENARIOS = ("calm", "crash", "deaf", "hang", "interrupt", "silent")
LOOK_SECONDS, STACK_SECONDS, HEARING_SECONDS, LEAVING_SECONDS = 1.0, 0.5, 1.5, 0.3
WAVE = 1000  # connections that are begun at the same time
STACK = "  train.py:52 in loop\n  train.py:80 in main"


class Job:
    """All ranks, and the one thread in which they live.

    Args:
        num_ranks: how many.
        scenario: one of SCENARIOS; what goes wrong does so on the rank in the middle.
        seconds: from all ranks' start to that, or to the end.
        notes: where moments and counts go.
    """

    def __init__(self, num_ranks: int, scenario: str, seconds: float, notes: Path):
        self.num_ranks, self.scenario, self.seconds, self._notes = num_ranks, scenario, seconds, notes
        self.culprit = num_ranks // 2
        self.selector = selectors.DefaultSelector()
        self.sent: Counter[str] = Counter()
        self.heard: Counter[str] = Counter()
        self.bytes = [0, 0]  # sent, heard
        self.invited = json.loads(os.environ.pop(wire.VARIABLE))
        self.host = socket.gethostname()
        self.about = {"host": self.host, "pid": os.getpid(), "session": None}
        self.about |= {"own_address": own_address(), "installed": installed()}
        self.stops: set[int] = set()  # the steps that ranks were told to stop before
        self.trouble: float | None = None  # when it began, by the monotonic clock
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._number, self._num_started, self._num_left = 0, 0, num_ranks

    def run(self) -> None:
        """Returns when all ranks have ended."""
        for first in range(0, self.num_ranks, WAVE):
            self.after(0.01 * first / WAVE, lambda first=first: self._begin(first))
        while self._num_left:
            for key, _ in self.selector.select(max(0.0, self._due[0][0] - time.monotonic()) if self._due else None):
                key.data.hear()
            while self._due and self._due[0][0] <= time.monotonic():
                heapq.heappop(self._due)[2]()
        counts = {"sent": self.sent, "heard": self.heard, "bytes": self.bytes, "stops": sorted(self.stops)}
        self.note("done", **counts)

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        """Does something later."""
        self._number += 1
        heapq.heappush(self._due, (time.monotonic() + seconds, self._number, action))

    def note(self, moment: str, **content) -> None:
        with self._notes.open("a") as file:
            file.write(json.dumps({"moment": moment, "time": time.time(), **content}) + "\n")

    def note_start(self) -> None:
        """Takes in that a rank may begin; when all may, the scenario begins."""
        self._num_started += 1
        if self._num_started == self.num_ranks:
            self.note("started")
            self.after(self.seconds, self._make_trouble)

    def note_end(self) -> None:
        self._num_left -= 1

    def _begin(self, first: int) -> None:
        self.ranks = getattr(self, "ranks", []) + [
            Rank(self, rank) for rank in range(first, min(first + WAVE, self.num_ranks))
        ]

    def _make_trouble(self) -> None:
        self.trouble = time.monotonic()
        self.note("trouble")
        culprit = self.ranks[self.culprit]
        if self.scenario == "calm":
            for rank in self.ranks:
                self.after(LEAVING_SECONDS * rank.rank / self.num_ranks, rank.end)
        elif self.scenario in ("crash", "deaf"):
            culprit.end(status=1, failed=time.time(), error="ValueError: this is the trouble")
        if self.scenario == "crash":
            error = f"RuntimeError: keras-par: rank {self.culprit} failed first, so this rank stops"
            for rank in self.ranks:
                share = rank.rank / self.num_ranks
                what = {"status": 1, "is_consequence": True, "error": error, "failed": time.time() + share}
                self.after(HEARING_SECONDS * (0.5 + share / 2), lambda rank=rank, what=what: rank.end(**what))


class Rank(wire.Channel):
    """One rank and its agent: what they would say, and what they do when they are told something."""

    def __init__(self, job: Job, rank: int):
        self._job, self.rank = job, rank
        connection = socket.create_connection(job.invited["addresses"][0])
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        super().__init__(connection)
        self._own, self._challenge = secrets.token_bytes(NONCE_BYTES), b""
        self._is_greeted, self._has_ended = False, False
        job.selector.register(connection, selectors.EVENT_READ, self)

    def hear(self) -> None:
        """Takes in what has come, and does what it says."""
        before = len(self._come)
        if not self.read():
            return self._leave()
        self._job.bytes[1] += len(self._come) - before
        if self._is_greeted or self._greet():
            for message in self.messages():
                self._obey(message)
        return None

    def end(self, status: int = 0, **what) -> None:
        """Ends, with fields of an `Exit`; its agent stays until the launcher lets it go."""
        if not self._has_ended:
            self._has_ended = True
            place = "at step 7 of epoch 1"
            end = Exit(self.rank, self._job.host, status, time.time(), place=place, **what)
            self._send({"exit": vars(end)})

    def _greet(self) -> bool:
        """As `wire.greeted` does, without waiting."""
        key = self._job.invited["key"]
        if not self._challenge and (challenge := self.take(NONCE_BYTES)) is not None:
            self._challenge = challenge
            self.write(self._own + proof(key, "agent", challenge, self._own))
        if (shown := self.take(PROOF_BYTES)) is None:
            return False
        assert shown == proof(key, "launcher", self._own, self._challenge)
        self._is_greeted = True
        self._send({"hello": self.rank, "time": time.time(), **self._job.about})
        return True

    def _obey(self, message: wire.Message) -> None:
        kind = next(iter(message))
        self._job.heard[kind] += 1
        if kind == "environment":
            self._start(message)
        elif kind == "look":
            self._send({"state": brief(self._state())})
        elif kind == "stacks":
            self._job.after(STACK_SECONDS, lambda: self._send({"stacks": STACK}))
        elif kind == "pause":
            self._send({"paused": {"executions": 100 + self.rank % 2, "is_in_fit": True}})
        elif kind == "stop_before":
            self._job.stops.add(message["stop_before"])
            self._send({"stopped": {"text": "after step 101 of epoch 1"}})
            self._job.after(LEAVING_SECONDS, lambda: self.end(status=130))
        elif kind in ("terminate", "kill"):
            self._job.after(LEAVING_SECONDS, lambda: self.end(status=-15, was_told=True))
        elif kind == "dismiss":
            self._leave()

    def _start(self, message: wire.Message) -> None:
        self._beats = Beats(message["beat"])
        self._send({"output": "stdout", "text": f"rank {self.rank} begins\n"})
        self._job.note_start()
        self._look()

    def _look(self) -> None:
        if self._has_ended or (self._is_culprit and self._job.scenario == "silent"):
            return
        if self._beats.is_due(state := self._state(), time.monotonic()):
            self._send({"state": brief(state)})
        self._job.after(LOOK_SECONDS, self._look)

    @property
    def _is_culprit(self) -> bool:
        return self.rank == self._job.culprit and self._job.trouble is not None

    def _state(self) -> State:
        """At work; after a hang has begun, in a collective, or on the culprit in its data."""
        job = self._job
        if job.scenario != "hang" or job.trouble is None:
            return State(self.rank, True, "forward-backward", 0.04, "fit", (), 0, 7, 7, 0.1)
        since = time.monotonic() - job.trouble
        if self._is_culprit:
            return State(self.rank, True, "data", since, "fit", (), 0, 8, 8, since)
        return State(self.rank, True, "reduce", since, "fit", ("kp.gradients.0.0",), 0, 8, 8, since)

    def _send(self, message: wire.Message) -> None:
        if self._has_ended and "exit" not in message:
            return
        self._job.sent[next(iter(message))] += 1
        self.send(message)

    def write(self, data: bytes) -> None:
        self._job.bytes[0] += len(data)
        super().write(data)

    def _leave(self) -> None:
        if self.fileno() >= 0:
            self._job.selector.unregister(self.socket)
            self.close()
            self._job.note_end()
            self._has_ended = True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("ranks", type=int)
    parser.add_argument("scenario", choices=SCENARIOS)
    parser.add_argument("notes", type=Path)
    parser.add_argument("--seconds", type=float, default=5.0, help="from the start to the trouble (%(default)g)")
    args = parser.parse_args()
    Job(args.ranks, args.scenario, args.seconds, args.notes).run()


if __name__ == "__main__":
    main()
