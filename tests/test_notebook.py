"""`kp.run` in a real Jupyter kernel: output and errors in the cell, functions of the notebook's own, an interrupt."""

import os
import re
import signal
import threading
import time
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from tests.launcher import MARK, Job
from tests.patience import PATIENCE
from tests.ranks.pool import environment

CODES = re.compile(r"\x1b\[[\d;]*m")
IMPORTS = "import asyncio, keras, numpy as np, tensorflow as tf\nimport keras_par as kp"
CELLS = [
    IMPORTS,
    """
class Wave(keras.layers.Layer):
    def call(self, x):
        return tf.sin(x)

def model_of(units):
    return keras.Sequential([keras.layers.Dense(units), Wave(), keras.layers.Dense(1)])

def prepared(x, y):
    if tf.reduce_sum(x) > 1e9:  # which AutoGraph must translate, and so read
        x = x - 1
    return x, y
""",
    """
rows = np.arange(80, dtype="float32").reshape(20, 4) / 80

def train(units):
    kp.init()
    print(f"rank {kp.rank()} has begun")
    keras.utils.set_random_seed(3)
    with kp.DataParallel().scope():
        model = model_of(units)
        model.compile("sgd", "mse")
    data = tf.data.Dataset.from_tensor_slices((rows, rows.sum(1))).map(prepared).batch(8)
    history = model.fit(data, epochs=2)
    return history.history["loss"]

assert asyncio.get_running_loop().is_running()
losses = kp.run(train, [8])
assert losses[0] == losses[1] and losses[0][0] > losses[0][1], losses
""",
]
FAILS = """
def fails():
    kp.init()
    if kp.rank() == 1:
        raise ValueError("this is the trouble")
    kp.barrier()

kp.run(fails)
"""
WAITS = """
import pathlib, time

def waits():
    kp.init()
    pathlib.Path(f"began.{kp.rank()}").touch()
    time.sleep(100)

kp.run(waits)
"""


class Notebook:
    """A kernel that runs cell after cell."""

    def __init__(self, folder: Path):
        self.book = nbformat.v4.new_notebook()
        self.client = NotebookClient(self.book, timeout=PATIENCE, resources={"metadata": {"path": str(folder)}})

    def run(self, source: str) -> str:
        """Runs a cell, and gives what it shows as text.

        Raises:
            CellExecutionError: it failed.
        """
        self.book.cells.append(nbformat.v4.new_code_cell(source.strip()))
        self.client.execute_cell(self.book.cells[-1], len(self.book.cells) - 1)
        return self.shown()

    def shown(self) -> str:
        """What the last cell has shown."""
        return CODES.sub("", "".join(each.get("text", "") for each in self.book.cells[-1].outputs))


@pytest.fixture
def notebook(tmp_path, monkeypatch):
    """A notebook whose kernel runs; in the end nothing of it is left."""
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "jupyter"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    job = Job.__new__(Job)
    job.mark = str(tmp_path)
    made = Notebook(tmp_path)
    with made.client.setup_kernel(env=environment(**{MARK: job.mark})):
        yield made
    job.require_gone()


@pytest.mark.long
def test_a_notebook_trains_on_ranks_and_shows_what_they_print(notebook):
    shown = [notebook.run(cell) for cell in CELLS]
    assert "[0] rank 0 has begun\n" in shown[-1] and "[1] rank 1 has begun\n" in shown[-1]
    assert re.search(r"\[0\] .*3/3.* - loss: ", shown[-1]), shown[-1]
    assert "AutoGraph" not in shown[-1] and "2 ranks finished in" in shown[-1]


@pytest.mark.long
def test_an_error_and_an_interrupt_come_to_the_cell(notebook, tmp_path):
    notebook.run("import keras_par as kp")
    with pytest.raises(CellExecutionError, match="RuntimeError") as error:
        notebook.run(FAILS)
    text = CODES.sub("", str(error.value))
    assert "rank 1 failed first" in text and "Error: ValueError: this is the trouble" in text
    assert re.search(r"Last line of your code: \S+:4 in fails: raise ValueError\(\"this is the trouble\"\)", text)
    assert "[1] ValueError: this is the trouble\n" in notebook.shown()
    threading.Thread(target=interrupt, args=[notebook, tmp_path / "began.1"], daemon=True).start()
    with pytest.raises(CellExecutionError, match="KeyboardInterrupt"):
        notebook.run(WAITS)
    assert "stopping all ranks after the step under way" in notebook.shown()
    assert notebook.run("print(kp.run(lambda: 'again'))").endswith("['again', 'again']\n")


def interrupt(notebook: Notebook, begun: Path) -> None:
    """Interrupts the kernel once a file is there."""
    while not begun.exists():
        time.sleep(0.05)
    os.kill(notebook.client.km.provisioner.pid, signal.SIGINT)
