"""What several commands share: numbers as arguments, and the one sentence about an argument that is wrong."""

import argparse
import sys

from keras_par.base.environment import one_line

USAGE_STATUS = 2  # of a command that cannot be carried out, as argparse has it
MOST = 999_999  # ranks of a job, and whatever else is counted; a larger number is a slip
LONGEST, LONGEST_SENTENCE = 60, 2000  # characters of an argument in a sentence, and of that


def whole(text: str, least: int) -> int:
    """A whole number from `least` to MOST.

    Raises:
        argparse.ArgumentTypeError: the text is no such number.
    """
    is_number = text.isascii() and text.isdecimal()
    value = int(text) if is_number and len(text) < 10 else MOST + 1
    if not is_number or value < least:
        raise argparse.ArgumentTypeError(f"{shown(text)} must be a whole number of at least {least}")
    if value > MOST:
        raise argparse.ArgumentTypeError(f"{shown(text)} must be a whole number of at most {MOST}")
    return value


def several(text: str) -> int:
    """A number of ranks that have something to send to each other."""
    return whole(text, 2)


def positive(text: str) -> int:
    return whole(text, 1)


def not_negative(text: str) -> int:
    return whole(text, 0)


def seconds(text: str) -> float:
    """A time above 0.

    Raises:
        argparse.ArgumentTypeError: the text is none.
    """
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{shown(text)} must be a number of seconds above 0")
    return value


def complain(command: str, sentence: str) -> int:
    """Prints one sentence about what a command cannot do, and returns the exit status for it."""
    print(f"keras-par {command}: {one_line(sentence.removeprefix('keras-par: '), LONGEST_SENTENCE)}", file=sys.stderr)
    return USAGE_STATUS


def shown(text: str) -> str:
    """A text in quotes, of a long one its begin."""
    return f"'{one_line(text, LONGEST)}'"
