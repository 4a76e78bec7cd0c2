"""A script without TensorFlow that does on one rank what its arguments say, while the others wait.

plain.py WHAT RANK [ARGUMENT ...]
"""

import ctypes
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

what, culprit, *rest = sys.argv[1:]
rank = int(os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("HOROVOD_RANK", "0")))
size = int(os.environ.get("OMPI_COMM_WORLD_SIZE", os.environ.get("HOROVOD_SIZE", "1")))
is_culprit = rank == int(culprit)


def fail():
    """Raises an error through a library, so that the last frame is not the user's."""
    subprocess.check_call(["false"])


def daemonize(command):
    """Starts a process that has left this one's session and parents."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execvp(command[0], command)
        os._exit(0)


if what == "show":
    print(f"rank {rank} got {rest}")
    print(f"rank {rank} on stderr", file=sys.stderr)
elif what == "environment":
    print(" ".join(f"{name}={os.environ.get(name)}" for name in rest), sorted(os.sched_getaffinity(0)))
elif what == "children":
    children = [subprocess.Popen(["sleep", "1000"], start_new_session=flag) for flag in (False, True)]
    daemonize(["sleep", "1000"])
    Path(rest[0], f"ready.{rank}").touch()
    if rest[1] == "fail" and is_culprit:
        while len(list(Path(rest[0]).glob("ready.*"))) < size:
            time.sleep(0.05)
        fail()
    if rest[1] != "end":
        time.sleep(1000)
elif what == "attempts":
    print(f"attempt {os.environ['KERAS_PAR_RESTART_COUNT']}")
    if is_culprit and os.environ["KERAS_PAR_RESTART_COUNT"] != rest[0]:
        sys.exit(9)
elif what == "sleep":
    Path(rest[0], f"ready.{rank}").touch()
    time.sleep(1000)
elif what == "memory of MPI":
    library = Path(sys.prefix, "lib", "libmpi.so.40")
    mpi = ctypes.CDLL(str(library) if library.exists() else library.name, ctypes.RTLD_GLOBAL)
    assert mpi.MPI_Init(None, None) == 0
    kept = multiprocessing.get_context("spawn").Semaphore(1)
    Path(rest[0], f"ready.{rank}").write_text(kept._semlock.name.lstrip("/"))
    time.sleep(1000)
elif what == "hold":  # a secret, until there is a file
    assert os.environ[rest[1]]
    Path(rest[0], f"ready.{rank}").touch()
    while not Path(rest[0], "go").exists():
        time.sleep(0.05)
elif what == "bar":  # as Keras draws it
    for number in range(1, 6):
        print("\b" * 9 + f"\r\x1b[1m{number}/5\x1b[0m \x1b[32m━━\x1b[0m", end="", flush=True)
        time.sleep(0.4)
    print(f"\b\b\b\r\x1b[1m5/5\x1b[0m loss {rank}  ")
    print("I0000 00:00:1795313748.402756   23088 port.cc:153] oneDNN custom operations are on.", file=sys.stderr)
    print("E0000 00:00:1795313748.402756   23088 cuda.cc:1] an error of TensorFlow's", file=sys.stderr)
elif what == "talk":
    for number in range(int(rest[0])):
        print(f"rank {rank} line {number} {'x' * 1000}", flush=True)
elif what == "save":
    Path(rest[0], f"ready.{rank}").touch()
    try:
        time.sleep(1000)
    finally:
        if is_culprit:
            while not Path(rest[0], "saved").exists():
                time.sleep(0.05)
            Path(rest[0], "has saved").touch()
elif what == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if is_culprit:
        time.sleep(0.5)
        Path(rest[0]).write_text(str(time.time()))
        fail()
    time.sleep(1000)
elif is_culprit:
    Path(rest[0]).write_text(str(time.time())) if rest else None
    if what == "raise":
        fail()
    if what == "exit":
        sys.exit(7)
    if what == "fault":
        ctypes.string_at(0)
    if what == "memory":
        hog = [bytearray(b"x") * 2**20 for _ in range(10**6)]
    os.kill(os.getpid(), getattr(signal, what))
else:
    time.sleep(1000)
