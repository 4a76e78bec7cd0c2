"""Measures how fast a language model of KerasHub's writes where ranks divide it, beside one process.

    python -m benchmarks generation

A Gemma of random weights writes after four prompts, greedily. One process has one core, as each of the two ranks. The
figures are medians of calls in turns within one job; those of one process are of a job of its own.
"""

import argparse
import contextlib
import json
import statistics
import time
from pathlib import Path

from benchmarks.jobs import alternate, figures_of, mpirun, part, threads

SIZES = {"vocabulary_size": 8192, "num_layers": 4, "hidden_dim": 512, "intermediate_dim": 2048}
HEADS = {"num_query_heads": 8, "num_key_value_heads": 8, "head_dim": 64}
PROMPTS, PROMPT_LENGTH = 4, 8
PLAIN, COPIES, LAYOUTS, ZERO = "one process", "2 ranks, copies", "2 ranks, KerasHub's layouts", "2 ranks, zero=3"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="calls of each system (%(default)s)")
    parser.add_argument("--length", type=int, default=256, help="tokens of a text (%(default)s)")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--worker", choices=("alone", "ranks"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        return worker(args)
    options = ["--rounds", args.rounds, "--length", args.length]
    figures = []
    for kind, launcher in (("alone", mpirun(1)), ("ranks", mpirun(2))):
        figures += figures_of([*launcher, *part("generation", "--worker", kind, *options)])
    show(figures)
    if args.json:
        args.json.write_text(json.dumps(figures, indent=2))


def show(figures):
    from rich.console import Console
    from rich.table import Table

    table = Table("system", "tokens/s", "quartiles", "beside one process")
    for row in figures:
        low, high = row["quartiles"]
        ratio = row["tokens_per_second"] / figures[0]["tokens_per_second"]
        table.add_row(row["system"], f"{row['tokens_per_second']:.0f}", f"{low:.0f}-{high:.0f}", f"{ratio:.2f}")
    Console(width=100).print(table)


def worker(args):
    threads(1)
    import keras_par as kp

    kp.init()
    systems = [PLAIN] if args.worker == "alone" else [COPIES, LAYOUTS, ZERO]
    writers = [writer(system, args.length) for system in systems]
    figures = []
    for system, times in zip(systems, alternate(writers, args.rounds), strict=True):
        num_tokens = PROMPTS * (args.length - PROMPT_LENGTH)
        low, middle, high = (num_tokens / seconds for seconds in statistics.quantiles(times, n=4))
        figures.append({"system": system, "tokens_per_second": middle, "quartiles": [high, low]})
    if kp.rank() == 0:
        print(json.dumps(figures), flush=True)


def writer(system, length):
    """A function that lets a model write, and returns the seconds that it took."""
    import keras
    import keras_hub
    import numpy as np

    keras.utils.set_random_seed(1)
    with strategy(system):
        model = keras_hub.models.GemmaCausalLM(keras_hub.models.GemmaBackbone(**SIZES, **HEADS))
        model.compile(sampler="greedy")
    tokens = np.zeros((PROMPTS, length), "int32")
    tokens[:, :PROMPT_LENGTH] = np.random.default_rng(1).integers(1, SIZES["vocabulary_size"], (PROMPTS, PROMPT_LENGTH))
    prompts = {"token_ids": tokens, "padding_mask": (tokens > 0).astype("int32")}

    def write():
        begin = time.perf_counter()
        np.asarray(model.generate(prompts, stop_token_ids=None)["token_ids"])
        return time.perf_counter() - begin

    return write


def strategy(system):
    import keras
    import keras_hub

    import keras_par as kp

    if system == PLAIN:
        return contextlib.nullcontext()
    if system != LAYOUTS:
        return kp.DataParallel(zero=3 if system == ZERO else 0).scope()
    mesh = keras.distribution.DeviceMesh((1, kp.size()), ("batch", "model"))
    return kp.ModelParallel(
        layout_map=keras_hub.models.GemmaBackbone.get_layout_map(mesh), batch_dim_name="batch"
    ).scope()


if __name__ == "__main__":
    main()
