"""Starts a program as an agent does, in a process that has no other children, and interrupts it each time it sleeps.

    python -m tests.signalled TIMES PROGRAM [ARGUMENT ...]

The program says "ready" first, and something after each interrupt. All that it says is printed.
"""

import os
import select
import signal
import sys
import time
from pathlib import Path

from keras_par.agent.rank_process import RankProcess
from tests.patience import PATIENCE


def main() -> None:
    # As agents do, so that the program hears of it; a shell's background jobs would ignore it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    process = RankProcess(sys.argv[2:], os.environ, merge_stderr=True)
    os.set_blocking(process.stdout.fileno(), True)
    try:
        said(process)
        for _ in range(int(sys.argv[1])):
            wait_until_asleep(process.page.pid)
            process.send_signal(signal.SIGINT)
            said(process)
        while said(process):
            pass
    finally:
        process.kill()


def said(process: RankProcess) -> str:
    """The program's next line, empty at its end."""
    if not select.select([process.stdout], [], [], PATIENCE)[0]:
        raise SystemExit("the program says nothing")
    line = process.stdout.readline().decode()
    print(line, end="", flush=True)
    return line


def wait_until_asleep(pid: int) -> None:
    """Returns once the main thread of a process is in `time.sleep`; on its way there a signal would not wake it."""
    deadline = time.monotonic() + PATIENCE
    while "nanosleep" not in Path(f"/proc/{pid}/wchan").read_text():
        if time.monotonic() > deadline:
            raise SystemExit("the program does not sleep")
        time.sleep(0.001)


if __name__ == "__main__":
    main()
