"""Runs on Ray's nodes, an actor for each rank, and below it the rank's agent; hands over what the function returned."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from typing import BinaryIO

from keras_par.agent import remote_function
from keras_par.agent.__main__ import main
from keras_par.agent.rank_process import PR_SET_PDEATHSIG, libc
from keras_par.launch.engines import exported, settings

MOST_LINES = 12  # of what an agent says that cannot do its work


class Worker:
    """The actor of one rank."""

    def port(self) -> int:
        """A port of this node that is free."""
        with socket.socket() as probe:
            probe.bind(("", 0))
            return probe.getsockname()[1]

    def run(self, content: bytes, rank: int, given: Mapping[str, str], port: int, num_threads: int) -> bytes | None:
        """Runs the agent of a rank until it has ended.

        Args:
            content: the function that the rank calls, as it was packed.
            rank: its number.
            given: variables that it gets besides those of this actor.
            port: where rank 0 waits for the others.
            num_threads: that TensorFlow may use.

        Returns:
            What the function returned, pickled; None if it did not.

        Raises:
            RuntimeError: the agent failed, not the function.
        """
        with in_memory("function") as function, in_memory("result") as result:
            function.write(content)
            function.flush()
            variables = {**exported(os.environ), **given, "RANK_ID": str(rank), "MASTER_PORT": str(port)}
            variables["PYTHONPATH"] = os.pathsep.join(sys.path)  # what Ray has brought here can be imported
            variables |= settings(num_threads, False, variables)
            done = subprocess.run(
                [
                    sys.executable,
                    "-P",
                    "-m",
                    "keras_par.ray.worker",
                    *remote_function.program(path_of(function), path_of(result)),
                ],
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                check=False,
            )
            if done.returncode != 0:
                raise RuntimeError("\n".join(done.stdout.splitlines()[-MOST_LINES:]))
            return result.read() or None


def in_memory(name: str) -> BinaryIO:
    """A file that is gone with this process, however it ends."""
    return os.fdopen(os.memfd_create(name), "r+b")


def path_of(file: BinaryIO) -> str:
    """By which other processes open it."""
    return f"/proc/{os.getpid()}/fd/{file.fileno()}"


if __name__ == "__main__":  # the agent, which dies with its actor, as when Ray takes the node away
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # Ray blocks SIGINT, by which ranks hear of Ctrl-C
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    sys.exit(main(["--", *sys.argv[1:]]))
