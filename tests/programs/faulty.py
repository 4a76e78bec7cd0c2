"""A rank without TensorFlow that steps together with the others, until one of them has the fault its arguments say.

faulty.py FOLDER RANK STEP FAULT THREADS SIZE

THREADS says whether all ranks have a thread that Python waits for. The others wait for the culprit as in a collective,
or leave with an error once it has told its own.
"""

import atexit
import ctypes
import os
import signal
import sys
import threading
import time
from pathlib import Path

from keras_par.job import rank_heartbeat
from tests.launcher import rank_of_this_process

folder, culprit, at_step, fault, threads, size = sys.argv[1:]
rank, heartbeat = rank_of_this_process(), rank_heartbeat.current()
if threads == "threads":
    threading.Thread(target=time.sleep, args=(1000,), name="uploader").start()


def meet(step: int) -> None:
    """Waits until both ranks have come to a step, or the other one has failed."""
    Path(folder, f"{rank}.{step}").touch()
    with heartbeat.collective("kp.sum"):
        while not Path(folder, f"{1 - rank}.{step}").exists():
            if Path(folder, "failed").exists():
                fail("RuntimeError: another rank failed", is_consequence=True)
            time.sleep(0.01)


def fail(message: str, is_consequence: bool = False) -> None:
    heartbeat.tell("failure", message=message, is_consequence=is_consequence, on_all_ranks=False)
    raise RuntimeError(message)


def have(fault: str) -> None:
    if fault == "error":
        Path(folder, "failed").touch()
        fail("E" * int(size))
    if fault == "unheard":  # no other rank learns of it
        fail("E" * int(size))
    if fault == "exit":
        sys.exit(3)
    if fault == "gone":
        os._exit(0)
    if fault == "atexit":
        atexit.register(time.sleep, 1000)
        sys.exit(0)
    if fault == "exec":
        os.execvp("sleep", ["sleep", "1000"])
    if fault == "closed":
        os.closerange(0, 1000)
        fail("closed")
    if fault == "fault":
        ctypes.string_at(0)
    if fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(1000)  # a hang


with heartbeat.call("fit"):
    for step in range(3):
        heartbeat.begin_step(1)
        if rank == int(culprit) and step == int(at_step):
            have(fault)
        meet(step)
        heartbeat.end_step({})
os._exit(0) if threads == "threads" else None
