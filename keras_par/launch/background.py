"""Starts a job that goes on when the terminal is closed."""

import argparse
import shlex
import subprocess
import sys
from pathlib import Path

from keras_par.launch import run_folder

FOLDER = "log_output"


def start(arguments: argparse.Namespace) -> int:
    """Starts the same command again as a job of its own, and returns at once."""
    folder, lock, note = run_folder.begin((arguments.log_dir or Path(FOLDER)).absolute())
    log = folder / run_folder.LOG
    first, *rest = arguments.argv
    rest.remove("--background")
    if arguments.log_dir is not None:
        place = next(i for i, each in enumerate(rest) if each.partition("=")[0] == "--log-dir")
        del rest[place : place + 1 + ("=" not in rest[place])]
    with log.open("wb") as file:
        job = subprocess.Popen(
            [sys.executable, "-P", "-m", "keras_par.launch.cli", first, "--log-dir", str(folder), "--tee", *rest],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    lock.hand_over(job.pid)
    if note is not None:
        print(f"keras-par: {note}")
    print(f"keras-par: started in the background as process {job.pid}")
    print(f"  log:  {log} (tail -f {shlex.quote(str(log))})")
    print(f"  stop: kill -INT {job.pid} (once: after a step, with a last checkpoint; twice: at once)")
    return 0
