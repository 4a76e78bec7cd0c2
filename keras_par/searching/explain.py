"""Says in text what a search found: the plan, what each layer costs, and why it is not another one."""

import io
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from keras_par.catalogue.strategy_file import Entry, Strategy
from keras_par.searching.find import Candidate, Found
from keras_par.searching.sizes import size

WIDTH = 120
LAYERS = 12  # of the most expensive that are shown


def strategy_of(found: Found, entries: tuple[Entry, ...], name: str) -> Strategy:
    """The plan as a strategy file has it."""
    best = found.best
    what = f"Found by the search '{found.mode}': {times(best)} a step and {size(best.prediction.num_bytes)} a rank."
    return Strategy(name, what, best.mesh if entries else {}, entries)


def explanation(found: Found, entries: Sequence[Entry]) -> str:
    """All of it."""
    best = found.best
    console = Console(file=io.StringIO(), width=WIDTH, color_system=None)
    console.print(f"Search '{found.mode}', {size(found.memory)} a rank: {mesh_of(best)}, {times(best)} a step.")
    parts = ", ".join(f"{name} {size(held)}" for name, held in best.prediction.parts.items())
    console.print(f"A rank holds {size(best.prediction.num_bytes)}: {parts}.")
    if entries:
        layouts = Table("variables", "layout", box=None, pad_edge=False)
        for entry in entries:
            layouts.add_row(entry.pattern, "(" + ", ".join(axis or "-" for axis in entry.axes) + ")")
        console.print(layouts)
    else:
        console.print("Every rank holds all variables: data parallel.")
    console.print(layers_table(best))
    console.print(others_table(found))
    return console.file.getvalue().rstrip()  # type: ignore[attr-defined]


def layers_table(best: Candidate) -> Table:
    """The layers that take longest."""
    table = Table("layer", "ms a step", "part", box=None, pad_edge=False)
    total = best.prediction.seconds
    for layer, seconds in sorted(best.prediction.by_layer.items(), key=lambda item: -item[1])[:LAYERS]:
        table.add_row(layer or "(outside of layers)", f"{seconds * 1e3:.3f}", f"{seconds / total:.1%}")
    return table


def others_table(found: Found) -> Table:
    """Why not: the best plan of each other mesh, and plain data parallel."""
    table = Table("why not", "ms a step", "longer", "a rank holds", "", box=None, pad_edge=False)
    plain = found.data_parallel
    rows = [(mesh_of(each), each) for each in found.others]
    if plain is not None and found.best.layouts:
        rows.insert(0, ("data parallel", plain))
    for name, each in rows:
        longer = each.prediction.seconds / found.best.prediction.seconds - 1
        fits = "" if each.prediction.num_bytes <= found.memory else "does not fit"
        table.add_row(
            name, f"{each.prediction.seconds * 1e3:.3f}", f"{longer:+.1%}", size(each.prediction.num_bytes), fits
        )
    return table


def mesh_of(candidate: Candidate) -> str:
    """As "batch 4 x model 2"."""
    return " x ".join(f"{axis} {number}" for axis, number in candidate.mesh.items())


def times(candidate: Candidate) -> str:
    """Of a step."""
    return f"{candidate.prediction.seconds * 1e3:.3g} ms"


def as_json(found: Found, strategy: Strategy) -> dict[str, Any]:
    """The plan, what it costs and what others would, as JSON can carry it."""

    def candidate(each: Candidate) -> dict[str, Any]:
        prediction = each.prediction
        return {"mesh": each.mesh, "seconds": prediction.seconds, "bytes": prediction.num_bytes, **prediction.parts}

    return {
        "search": found.mode,
        "memory": found.memory,
        "best": candidate(found.best),
        "layout": {entry.pattern: entry.axes for entry in strategy.entries},
        "layers": found.best.prediction.by_layer,
        "others": list(map(candidate, found.others)),
        "data_parallel": None if found.data_parallel is None else candidate(found.data_parallel),
    }
