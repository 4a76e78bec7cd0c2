"""What the ranks of a pool do for the tests of the reference: they run the examples of public names."""

import ast
import linecache
import os
import re
from unittest import mock

import keras
import numpy as np
import tensorflow as tf

OUTCOME = "# -> "
ON_RANK = re.compile(r"(.+?) on rank (\d+)(?:, |$)")


def run(name: str, text: str, folder: str) -> dict:
    """Runs an example in a folder, as a program of its own that has imported keras, np, tf and kp.

    Args:
        name: that the example is of.
        text: of the example.
        folder: which all ranks share.

    Returns:
        The rank, how many there are, and for each line with an outcome what it tells and what is there.
    """
    import keras_par as kp

    kp.init()
    found = {"rank": kp.rank(), "size": kp.size(), "outcomes": []}
    before = os.getcwd()
    os.chdir(folder)
    try:
        if name in PREPARED:
            if kp.rank() == 0:
                PREPARED[name]()
            kp.barrier()
        found["outcomes"] = outcomes(text, f"<{name}>", found["rank"], {"keras": keras, "np": np, "tf": tf, "kp": kp})
    finally:
        keras.distribution.set_distribution(None)
        os.chdir(before)
    return found


def outcomes(text: str, source: str, rank: int, namespace: dict) -> list[tuple[str, str, str]]:
    """Runs a text statement by statement; gives the lines with an outcome, each with what it tells and what is there.

    Args:
        text: Python.
        source: the name of the text, under which TensorFlow reads it to trace functions.
        rank: of this process.
        namespace: what the text begins with.
    """
    lines = text.splitlines()
    linecache.cache[source] = (len(text), None, text.splitlines(keepends=True), source)
    found = []
    for statement in ast.parse(text).body:
        line = lines[(statement.end_lineno or 0) - 1]
        if isinstance(statement, ast.Expr) and OUTCOME in line:
            value = eval(compile(ast.Expression(statement.value), source, "eval"), namespace)
            found.append((line, told(line, rank), repr(value)))
        else:
            exec(compile(ast.Module([statement], []), source, "exec"), namespace)
    return found


def told(line: str, rank: int) -> str:
    """The outcome that a line tells, on one rank where it tells one for each."""
    outcome = line.partition(OUTCOME)[2]
    by_rank = {int(number): value for value, number in ON_RANK.findall(outcome)}
    return by_rank[rank] if by_rank else outcome


def write_mnist() -> None:
    """A data set of the name and the features of MNIST, of 60 black images."""
    import tensorflow_datasets as tfds

    builder = tfds.builder("mnist", data_dir="data")
    rows = ((number, {"image": np.zeros((28, 28, 1), np.uint8), "label": number % 10}) for number in range(60))
    with mock.patch.object(type(builder), "_split_generators", lambda *_: {"train": rows}):
        builder.download_and_prepare(download_config=tfds.download.DownloadConfig(num_shards=2))


PREPARED = {"keras_par.data.load_tfds": write_mnist}  # what is there before the examples of these begin
