"""Starts the agents of one host over Gloo, as its standard input says: a command line could be read by other users."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from keras_par.base.slots import Slot, variables

ANSWER_SECONDS = 5.0  # that an address has to answer
TERMINATE_SECONDS = 5.0  # from SIGTERM to SIGKILL, for those that are left when one has failed
TERMINATED_STATUS = 128 + signal.SIGTERM


def main() -> int:
    """Starts the agents that standard input tells of, in JSON; the status of the first that failed."""
    return run_together(agents(json.load(sys.stdin)))


def agents(given: Mapping[str, Any]) -> Iterator[tuple[str, subprocess.Popen]]:
    """Starts an agent for each rank of this host, and says what each is called.

    Args:
        given: "folder" to work in, "environment" that is added, "addresses" where the rendezvous server may be reached,
            its "port", the "slots" of the ranks, and the agent's "command".
    """
    with contextlib.suppress(OSError):  # the script is looked for by its whole path
        os.chdir(given["folder"])
    os.environ.update(given["environment"])
    address = first_to_answer(given["addresses"], given["port"])
    for slot in (Slot(**each) for each in given["slots"]):
        own = os.environ | variables(slot, address, given["port"])
        yield f"the agent of rank {slot.rank}", subprocess.Popen(given["command"], stdin=subprocess.DEVNULL, env=own)


def first_to_answer(addresses: Sequence[str], port: int) -> str:
    """The first address at which somebody listens; the last if nobody does, which Gloo then says itself."""
    for address in addresses[:-1]:
        with contextlib.suppress(OSError), socket.create_connection((address, port), timeout=ANSWER_SECONDS):
            return address
    return addresses[-1]


def run_together(starts: Iterable[tuple[str, subprocess.Popen]]) -> int:
    """Waits for the ends of processes; the status of the first that failed, as a shell has it.

    Where one fails, or this process is told to end, the others are ended.

    Args:
        starts: starts one after another, and says what each is called.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED_STATUS))
    running: dict[int, tuple[str, subprocess.Popen]] = {}
    try:
        for name, process in starts:
            running[process.pid] = (name, process)
        while running:
            pid, found = os.wait()
            name, process = running.pop(pid)
            status = process.returncode = os.waitstatus_to_exitcode(found)
            if status:
                print(f"{name} ended with status {status}", flush=True)
                return status if status > 0 else 128 - status
    finally:
        end([process for _, process in running.values()])
    return 0


def end(running: Sequence[subprocess.Popen]) -> None:
    """Ends those that are left. Agents that know the launcher are ended by that, and take no notice of SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGKILL):
        for process in running:
            process.send_signal(number)
        deadline = time.monotonic() + TERMINATE_SECONDS
        while any(process.poll() is None for process in running) and time.monotonic() < deadline:
            time.sleep(0.02)


if __name__ == "__main__":
    sys.exit(main())
