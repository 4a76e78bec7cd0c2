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
    folder = (arguments.log_dir or Path(FOLDER)).absolute()
    log = run_folder.begin(folder) / run_folder.LOG
    first, *rest = arguments.argv
    rest.remove("--background")
    with log.open("wb") as file:
        job = subprocess.Popen(
            [sys.executable, "-P", "-m", "keras_par.launch.cli", first, "--log-dir", str(folder), "--tee", *rest],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    print(f"keras-par: started in the background as process {job.pid}")
    print(f"  log:  {log} (tail -f {shlex.quote(str(log))})")
    print(f"  stop: kill -INT {job.pid} (once: after a step, with a last checkpoint; twice: at once)")
    return 0
