"""One command for all measurements: `python -m benchmarks PART [options]`."""

import argparse
import contextlib
import importlib
import sys

from keras_par.comm import native

PARTS = {
    "throughput": ("throughput.compare", "keras-par beside what else trains the same models"),
    "growth": ("growth", "how a reduction's time and bytes grow with ranks and parameters"),
    "overhead": ("overhead", "what the strategy costs beside plain Keras and a hand-written loop"),
    "exactness": ("exactness", "what shared random numbers and the looks at weights and losses cost"),
    "normalization": ("normalization", "what batch normalization by the rows of all ranks costs"),
    "epochs": ("epochs", "what lies between two epochs, beside plain Keras"),
    "launcher": ("launcher", "what `keras-par run` costs beside mpirun and horovodrun"),
    "agents": ("agents", "what a job of thousands of simulated ranks costs the launcher"),
    "messages": ("messages", "what ranks send each other besides gradients, counted"),
    "input": ("input", "how fast sharded data sets are read"),
    "tensor-parallel": ("tensor_parallel", "what dividing a block over two ranks gains"),
    "generation": ("generation", "how fast a language model writes where ranks divide it"),
    "search": ("search", "how well the search tells fast layouts from slow ones"),
    "functions": ("functions", "how long functions such as GELU take, for the cost model"),
    "memory": ("memory", "the memory that the search predicts beside what a rank takes at its peak"),
    "maps": ("maps", "what the search finds beside layout maps that people made"),
    "found-plans": ("found_plans", "what the plans that are found gain over data parallel"),
    "hosts": ("hosts", "what goes between two hosts, and how long it takes"),
    "losses": ("losses", "jobs that lose hosts and ranks at random: steps, time, and how they end"),
    "process-sets": ("process_sets", "what Horovod's dynamic process sets cost"),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        epilog="\n".join(f"  {name:16} {about}" for name, (_, about) in PARTS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("options", nargs=argparse.REMAINDER, help="of that part; --help lists them")
    args = parser.parse_args()
    with contextlib.suppress(RuntimeError):
        native.library()  # jobs that find none sum by the engine
    sys.argv = [f"benchmarks {args.part}", *args.options]
    importlib.import_module(f"benchmarks.{PARTS[args.part][0]}").main()


if __name__ == "__main__":
    main()
