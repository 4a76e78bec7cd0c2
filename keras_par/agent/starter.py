"""Starts the agents of one host over Gloo, as its standard input says: a command line could be read by other users."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any

from keras_par.base.slots import Slot, variables

ANSWER_SECONDS = 5.0  # that an address has to answer
TERMINATE_SECONDS = 5.0  # from SIGTERM to SIGKILL, for those that are left when one has failed
TERMINATED_STATUS = 128 + signal.SIGTERM


def main() -> int:
    """Starts them and waits for their ends; the status of the first that failed.

    Standard input has JSON: "folder" to work in, "environment" that is added, "addresses" where the rendezvous server
    may be reached, its "port", the "slots" of the ranks, and the agent's "command".
    """
    given = json.load(sys.stdin)
    with contextlib.suppress(OSError):  # the script is looked for by its whole path
        os.chdir(given["folder"])
    os.environ.update(given["environment"])
    address = first_to_answer(given["addresses"], given["port"])
    slots = [Slot(**each) for each in given["slots"]]
    places = [(slot, os.environ | variables(slot, address, given["port"])) for slot in slots]
    return Children().run(
        (f"the agent of rank {slot.rank}", subprocess.Popen(given["command"], stdin=subprocess.DEVNULL, env=own))
        for slot, own in places
    )


def first_to_answer(addresses: Sequence[str], port: int) -> str:
    """The first address at which somebody listens; the last if nobody does, which Gloo then says itself."""
    for address in addresses[:-1]:
        with contextlib.suppress(OSError), socket.create_connection((address, port), timeout=ANSWER_SECONDS):
            return address
    return addresses[-1]


class EndedError(Exception):
    """This process was told to end."""


class Children:
    """Processes that end together: where one fails, or this process is told to end, the others are ended."""

    def __init__(self) -> None:
        self._running: dict[int, tuple[str, subprocess.Popen]] = {}

    def run(self, starts: Iterable[tuple[str, subprocess.Popen]]) -> int:
        """Waits for the ends of processes; the status of the first that failed, as a shell has it.

        Args:
            starts: starts one after another, and says what each is called.
        """
        signal.signal(signal.SIGTERM, self._be_told)
        try:
            for name, process in starts:
                self._running[process.pid] = (name, process)
            while self._running:
                pid, found = os.wait()
                name, process = self._running.pop(pid)
                status = process.returncode = os.waitstatus_to_exitcode(found)
                if status:
                    self._end()
                    print(f"{name} ended with status {status}", flush=True)
                    return status if status > 0 else 128 - status
        except EndedError:
            self._end()
            return TERMINATED_STATUS
        return 0

    def _end(self) -> None:
        """Ends those that are left. Agents that know the launcher are ended by that, and take no notice of SIGTERM."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        for number in (signal.SIGTERM, signal.SIGKILL):
            for _, process in self._running.values():
                process.send_signal(number)
            deadline = time.monotonic() + TERMINATE_SECONDS
            while any(process.poll() is None for _, process in self._running.values()) and time.monotonic() < deadline:
                time.sleep(0.02)

    def _be_told(self, *_: Any) -> None:
        raise EndedError


if __name__ == "__main__":
    sys.exit(main())
