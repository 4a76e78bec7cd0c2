"""Prints by how many MB a rank grows at most in a step of ten wide blocks, recomputed and not.

To be run with the settings of `tests.memory`.

recompute_memory.py LAYOUT
"""

import sys

import keras_par as kp
from tests import memory
from tests import recompute_tasks as tasks

ROWS = 16384


def peak_of(layout: str, recompute: tuple[str, ...]) -> float:
    with tasks.strategy_of(layout, "blocks", recompute=recompute).scope():
        model = tasks.blocks()
        model.compile("sgd", "mse")
        x, y = tasks.data_of(model, ROWS)
        model.train_on_batch(x[:64], y[:64])
        memory.forget_peak()
        before = memory.now()
        model.train_on_batch(x, y)
        return memory.peak() - before


kp.init()
tasks.WIDTH, tasks.NUM_BLOCKS = 64, 10
recomputed, kept = (peak_of(sys.argv[1], recompute) for recompute in (("block_.*",), ()))
sys.stdout.write(f"recomputed {recomputed} kept {kept}\n")
