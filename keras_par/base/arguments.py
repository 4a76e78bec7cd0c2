"""What arguments of several commands may be."""

import argparse


def several(text: str) -> int:
    """A number of ranks that have something to send to each other.

    Raises:
        argparse.ArgumentTypeError: it is not a whole number of at least 2.
    """
    if not text.isdecimal() or int(text) < 2:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 2")
    return int(text)
