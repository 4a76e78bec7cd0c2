"""Keeps one process group for each system, lets them train in turns, and stops those whose turn it is not."""

import contextlib
import os
import re
import resource
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path

ADDRESS = "BENCHMARK_ADDRESS"
START_SECONDS = 240
EPOCH_SECONDS = 600


class SystemFailedError(RuntimeError):
    """A system that does not start, or breaks off; says why."""


class Team:
    """The processes of one system, which wait until they are told to train an epoch.

    Between its turns a team is stopped by a signal, so that waiting costs the others nothing.

    Args:
        command: starts all of its processes.
        size: number of processes that will report here.
        environment: theirs.
    """

    def __init__(self, command: Sequence[str], size: int, environment: Mapping[str, str]):
        self._folder = tempfile.TemporaryDirectory()
        self._log = Path(self._folder.name, "log")
        address = str(Path(self._folder.name, "socket"))
        self._listener = Listener(address, "AF_UNIX", backlog=size)
        self._listener._listener._socket.settimeout(0.2)  # type: ignore[attr-defined]
        with open(self._log, "wb") as log:
            self._process = subprocess.Popen(
                command,
                env={**environment, ADDRESS: address},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._connections: list[Connection] = []
        self._pids: list[int] = []
        deadline = time.monotonic() + START_SECONDS
        while len(self._connections) < size:
            try:
                connection = self._listener.accept()
            except TimeoutError:
                self._require(time.monotonic() < deadline)
                continue
            self._pids.append(connection.recv()["pid"])
            self._connections.append(connection)
        self._signal(signal.SIGSTOP)

    def train(self) -> float:
        """Seconds of an epoch, those of the process that took longest."""
        self._signal(signal.SIGCONT)
        seconds = max(self._ask("train", EPOCH_SECONDS))
        self._signal(signal.SIGSTOP)
        return seconds

    def end(self) -> list[dict]:
        """Ends the processes; what each says of itself."""
        self._signal(signal.SIGCONT)
        told = self._ask("end", START_SECONDS)
        self._process.wait(START_SECONDS)
        self._listener.close()
        self._folder.cleanup()
        return told

    def kill(self) -> None:
        """Ends the processes at once, whatever they are doing."""
        for group in {*self._pids, self._process.pid}:
            with contextlib.suppress(ProcessLookupError):
                os.kill(group, signal.SIGKILL)
        self._process.wait()
        self._listener.close()

    def _ask(self, what: str, seconds: float) -> list:
        for connection in self._connections:
            connection.send(what)
        answers = []
        for connection in self._connections:
            try:
                self._require(connection.poll(seconds))
                answers.append(connection.recv())
            except (EOFError, ConnectionResetError):
                self._require(False)
        return answers

    def _require(self, is_well: bool) -> None:
        if is_well and self._process.poll() is None:
            return
        time.sleep(1)  # for the log's end
        lines = [line.strip() for line in self._log.read_text(errors="replace").splitlines() if line.strip()]
        wrong = [line for line in lines if re.search(r"Error\b|^F\d{4} ", line)]
        self.kill()
        raise SystemFailedError((wrong or lines or ["it says nothing"])[-1][:300])

    def _signal(self, number: int) -> None:
        for pid in self._pids:
            os.kill(pid, number)


def serve(train: Callable[[], float], about: Callable[[], dict] = dict) -> None:
    """In a process of a team, trains an epoch whenever told so.

    Args:
        train: returns an epoch's seconds.
        about: what is known at the end, besides the memory that the process had at most.
    """
    with Client(os.environ[ADDRESS], "AF_UNIX") as parent:
        parent.send({"pid": os.getpid()})
        while parent.recv() == "train":
            parent.send(train())
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        parent.send({"peak_memory": peak, **about()})
