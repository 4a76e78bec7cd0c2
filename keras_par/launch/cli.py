"""Parses the `keras-par` command line and calls the one function a sub-command stands for."""

import argparse
import importlib
import os
import sys
from typing import NoReturn

from keras_par.base.arguments import LONGEST_SENTENCE, USAGE_STATUS, complain, shown
from keras_par.base.environment import one_line
from keras_par.base.version import VERSION

PREFIX = "keras-par: "  # of a sentence that is for the user
COMMANDS = {
    "run": "keras_par.launch.run_command",
    "install-horovod": "keras_par.launch.install_horovod",
    "doctor": "keras_par.doctor.command",
    "report": "keras_par.report.command",
    "trace": "keras_par.report.trace",
    "plan": "keras_par.planning.command",
    "calibrate": "keras_par.searching.known_machines",
}


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one sentence."""

    def error(self, message: str) -> NoReturn:
        self.exit(USAGE_STATUS, f"{self.prog}: {one_line(message, LONGEST_SENTENCE)} (see {self.prog} --help)\n")


def main(argv: list[str] | None = None) -> int:
    """Runs `keras-par` with `argv` (default: the process's) and returns its exit status."""
    argv = sys.argv[1:] if argv is None else argv
    parser = Parser(prog="keras-par", description="Distributed training for Keras 3 on TensorFlow.")
    parser.add_argument("--version", action="version", version=f"keras-par {VERSION}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    wanted = argv[:1] if argv[:1] and argv[0] in COMMANDS else COMMANDS  # the others would only delay its start
    for name in wanted:
        importlib.import_module(COMMANDS[name]).add_parser(commands)
    arguments, unknown = parser.parse_known_args(argv)
    if unknown:
        commands.choices[arguments.command].error(f"unrecognized arguments: {' '.join(unknown)}")
    try:
        os.getcwd()
    except OSError:
        return complain(arguments.command, "the folder that this was called in is gone: change to another.")
    try:
        return arguments.run(arguments)
    except OSError as error:
        if error.filename is None:
            raise
        return complain(arguments.command, f"{shown(str(error.filename))} cannot be used ({error.strerror}).")
    except (RuntimeError, ValueError) as error:
        if not str(error).startswith(PREFIX):
            raise
        print(one_line(str(error), LONGEST_SENTENCE), file=sys.stderr)
        return USAGE_STATUS


if __name__ == "__main__":
    sys.exit(main())
