"""Counts what ranks send each other besides sums of gradients: at kp.init, at the begin of fit, an epoch, a step.

    python -m benchmarks messages

An MLP trains on 2 and 4 ranks with Horovod's collectives alone, as between hosts. What a rank contributes is counted;
of a gather it receives as much from each rank, so that those columns say what grows with the number of ranks.
"""

import argparse
import json
from collections import Counter
from pathlib import Path

from benchmarks.jobs import figures_of, mpirun, part

PHASES = ("kp.init", "the first fit", "an epoch", "a step", "a later fit")  # calls of fit besides their epochs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4], help="(%(default)s)")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank:
        return measure()
    command = part("messages", "--rank")
    found = [figures_of([*mpirun(size), *command], KERAS_PAR_SHARED_MEMORY="0")[0] for size in args.ranks]
    show(found)
    if args.json:
        args.json.write_text(json.dumps(found, indent=2))
    return None


def measure() -> None:
    """On each rank: trains, and prints what it sent in each phase."""
    import keras
    import numpy as np
    import tensorflow as tf

    import keras_par as kp
    from keras_par.comm import horovod
    from keras_par.comm.counted import CountedCommunicator

    sent: list[tuple[str, str, int, bool]] = []

    class Recording(CountedCommunicator):
        """Notes the kind, name and bytes of each collective, and if it is one of a graph."""

        def issue(self, request, tensors):
            tensors = [tf.convert_to_tensor(tensor) for tensor in tensors]
            size = sum((tensor.shape.num_elements() or 0) * tensor.dtype.size for tensor in tensors)
            sent.append((request.kind, request.name, size, not tf.executing_eagerly()))
            return self.inner.issue(request, tensors)

        def _wrapped(self, group):
            return Recording(group)

    plain = horovod.HorovodCommunicator
    horovod.HorovodCommunicator = lambda *given: Recording(plain(*given))  # type: ignore[assignment,misc]
    kp.init()
    of_init = sent[:]
    keras.distribution.set_distribution(kp.DataParallel())
    model = keras.Sequential([keras.layers.Dense(512, "relu"), keras.layers.Dense(512, "relu"), keras.layers.Dense(10)])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    x, y = np.zeros((256, 784), "float32"), np.zeros(256, "int32")

    def fit(epochs: int) -> list[tuple[str, str, int, bool]]:
        before = len(sent)
        model.fit(x, y, batch_size=64, epochs=epochs, verbose=0, shuffle=False)
        return sent[before:]

    first, one, two = fit(1), fit(1), fit(2)
    epoch = minus(two, one)
    in_fit = minus(one, epoch)
    of_steps = [each for each in first if each[3]]
    phases = [of_init, minus([each for each in first if not each[3]], epoch), epoch, of_steps, in_fit]
    if kp.rank() == 0:
        print(json.dumps([{"ranks": kp.size(), **dict(zip(PHASES, map(summed, phases), strict=True))}]), flush=True)


def minus(more: list, less: list) -> list:
    """What is in one list beyond another."""
    return list((Counter(more) - Counter(less)).elements())


def summed(sent: list) -> dict:
    """For each kind of collective, how many there are and how many bytes a rank gives them."""
    kinds: dict[str, list[int]] = {}
    for kind, _, size, _ in sent:
        count = kinds.setdefault(kind, [0, 0])
        count[0] += 1
        count[1] += size
    return {"kinds": kinds, "names": sorted({name for _, name, _, _ in sent})}


def show(found: list[dict]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("phase", *(f"{each['ranks']} ranks" for each in found))
    for phase in PHASES:
        cells = [
            ", ".join(f"{count} {kind} of {size} B" for kind, (count, size) in each[phase]["kinds"].items())
            for each in found
        ]
        table.add_row(phase, *cells)
    console = Console(width=160)
    console.print(table)
    for phase in PHASES:
        console.print(f"{phase}: {', '.join(found[0][phase]['names'])}")


if __name__ == "__main__":
    main()
