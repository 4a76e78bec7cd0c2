"""What has started a job's agents and is there as long as they are: a program such as mpirun, or Ray's actors."""

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence

import psutil

TERMINATE_SECONDS = 3.0  # from SIGTERM to SIGKILL
LOOK_SECONDS = 0.2  # from one look to the next whether its end is still waited for


class Started(ABC):
    """An engine at work.

    Args:
        name: what it is called in sentences.
    """

    def __init__(self, name: str):
        self.name = name

    @abstractmethod
    def poll(self) -> int | None:
        """None while it works, then its exit status, minus the signal that ended it."""

    @abstractmethod
    def wait(self, seconds: float) -> bool:
        """Waits so long for its end; False if it still works."""

    def wait_unless(self, is_over: Callable[[], bool], seconds: float) -> None:
        """Waits so long for its end, but only until something is so."""
        deadline = time.monotonic() + seconds
        while not is_over() and (rest := deadline - time.monotonic()) > 0:
            if self.wait(min(rest, LOOK_SECONDS)):
                return

    @abstractmethod
    def kill(self) -> None:
        """Ends it at once."""

    @abstractmethod
    def close(self) -> str:
        """Lets go of it, when it has ended; what it has said."""


class Program(Started):
    """A running program, the leader of a session of its own.

    Args:
        name: what it is called in sentences.
        command: what is run, arguments that no shell sees.
        environment: its variables.
        is_one_host: True if it starts agents on this host alone.
    """

    def __init__(self, name: str, command: Sequence[str], environment: Mapping[str, str], is_one_host: bool):
        super().__init__(name)
        self._is_one_host = is_one_host
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - it lasts as long as the program
        self._process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def poll(self) -> int | None:
        return self._process.poll()

    def wait(self, seconds: float) -> bool:
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        """Ends it; on other hosts only itself can end what it has started there."""
        if not self._is_one_host:
            self._process.terminate()
            self.wait(TERMINATE_SECONDS)
        if self.poll() is None:
            started = psutil.Process(self._process.pid).children(recursive=True)
            os.killpg(self._process.pid, signal.SIGKILL)
            for each in started:
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.kill()
            self._process.wait()

    def close(self) -> str:
        with self._log:
            self._log.seek(0)
            return self._log.read().decode(errors="replace")
