"""Where machines are found: files, those that ship, and the one here, measured by the command `keras-par calibrate`."""

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from keras_par.base.arguments import several
from keras_par.base.environment import cache_folder
from keras_par.comm import native
from keras_par.plan.machine import Machine, read_machine, typical

SHIPPED = Path(__file__).parent / "machines"


def measured_here() -> Path:
    """What `keras-par calibrate` writes, and a search reads unless it is told of another machine."""
    return cache_folder().parent / "machine.toml"


def machine_of(name_or_path: str | os.PathLike | None) -> Machine:
    """A machine by its file, by a name that ships, or the one that was measured here.

    Raises:
        ValueError: there is none, or its file is wrong.
    """
    if name_or_path is None:
        if not measured_here().is_file():
            raise ValueError(
                "keras-par: this machine was not measured: run 'keras-par calibrate', or name another one by --machine."
            )
        return read_machine(measured_here())
    shipped = SHIPPED / f"{name_or_path}.toml"
    path = Path(name_or_path)
    if not path.is_file() and not shipped.is_file():
        names = ", ".join(sorted(file.stem for file in SHIPPED.glob("*.toml")))
        raise ValueError(f"keras-par: there is no machine '{name_or_path}': give a file, or one of {names}.")
    return read_machine(path if path.is_file() else shipped)


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
    with contextlib.suppress(RuntimeError):  # ranks say why they share no memory
        native.library()
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
