"""The command `keras-par calibrate`: lets ranks measure this machine, for searches and for plans on other machines."""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from keras_par.base.arguments import several
from keras_par.plan.machine import read_machine, typical
from keras_par.searching.known_machines import measured_here

PROGRAM = "keras_par.searching.measure"
JOBS = 3  # whose medians count: where a process's memory happens to lie decides over much of its speed
DESCRIPTION = """Starts ranks on this host, three times, that measure how fast they compute, read and write memory, and
send (a minute), and writes the medians into a file. kp.search and 'keras-par plan --search' read the default one; other
machines plan with it by --machine. For several hosts: keras-par run -H HOST:SLOTS,... -m keras_par.searching.measure
FILE."""


def add_parser(commands) -> None:
    """Adds the sub-command `calibrate` to the argparse sub-parsers `commands`."""
    parser = commands.add_parser(
        "calibrate", help="measure this machine for the automatic search", description=DESCRIPTION
    )
    parser.add_argument("-np", type=several, default=2, metavar="N", help="ranks that a full host has (%(default)s)")
    parser.add_argument("--write", type=Path, metavar="FILE", help="default: machine.toml in the cache folder")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Runs the ranks; returns the exit status of the first that fail, or 0."""
    path = (arguments.write or measured_here()).resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(JOBS):
            file = Path(folder) / f"{number}.toml"
            command = [sys.executable, "-m", "keras_par.launch", "-np", str(arguments.np), "-m", PROGRAM, str(file)]
            if status := subprocess.run(command).returncode:
                return status
            found.append(read_machine(file))
    path.write_text(typical(found).text(), encoding="utf-8")
    print(path.read_text(encoding="utf-8"), end="")
    print(f"keras-par: wrote {path}", file=sys.stderr)
    return 0
