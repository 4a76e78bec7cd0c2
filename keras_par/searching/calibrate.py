"""The command `keras-par calibrate`: lets ranks measure this machine, for searches and for plans on other machines."""

import argparse
import subprocess
import sys
from pathlib import Path

from keras_par.searching.known_machines import measured_here

PROGRAM = "keras_par.searching.measure"
DESCRIPTION = """Starts ranks on this host that measure how fast they compute, read and write memory, and send (20
seconds), and writes that into a file. kp.search and 'keras-par plan --search' read the default one; other machines plan
with it by --machine. For several hosts: keras-par run -H HOST:SLOTS,... -m keras_par.searching.measure FILE."""


def add_parser(commands) -> None:
    """Adds the sub-command `calibrate` to the argparse sub-parsers `commands`."""
    parser = commands.add_parser(
        "calibrate", help="measure this machine for the automatic search", description=DESCRIPTION
    )
    parser.add_argument("-np", type=int, default=2, metavar="N", help="ranks that a full host has (%(default)s)")
    parser.add_argument("--write", type=Path, metavar="FILE", help="default: machine.toml in the cache folder")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Runs the ranks; returns their exit status."""
    path = (arguments.write or measured_here()).resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "keras_par.launch", "-np", str(arguments.np), "-m", PROGRAM, str(path)]
    status = subprocess.run(command).returncode
    if status == 0:
        print(path.read_text(encoding="utf-8"), end="")
        print(f"keras-par: wrote {path}", file=sys.stderr)
    return status
