"""Parses the `keras-par` command line and calls the one function a sub-command stands for."""

import argparse
import sys

from keras_par import __version__
from keras_par.launch import install_horovod


def main(argv: list[str] | None = None) -> int:
    """Runs `keras-par` with `argv` (default: the process's) and returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="keras-par",
        description="Distributed training for Keras 3 on TensorFlow.",
    )
    parser.add_argument("--version", action="version", version=f"keras-par {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    install_horovod.add_parser(commands)
    arguments = parser.parse_args(argv)
    return arguments.run(arguments)


if __name__ == "__main__":
    sys.exit(main())
