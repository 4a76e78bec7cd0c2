"""Says in text what a search found: the plan, what each layer costs, and why it is not another one."""

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from keras_par.base.sizes import short, size
from keras_par.distribution.describe import divisions
from keras_par.plan.cost import Prediction
from keras_par.plan.strategy_file import Entry, Strategy
from keras_par.searching.alternatives import Alternative
from keras_par.searching.find import Candidate, Found

WIDTH = 120
LAYERS = 12  # of the most expensive that are shown
OUTSIDE = "(outside of layers)"
COSTS = ("ms a step", "longer", "a rank holds")
DIVIDED = {  # by stage of ZeRO
    1: "the optimizer's state",
    2: "the optimizer's state and the gradients",
    3: "the optimizer's state, the gradients and the weights",
}


@dataclass(frozen=True)
class Answer:
    """All that a search says.

    Args:
        found: what it found.
        strategy: the same, as a file has it.
        alternatives: other layouts of classes of variables, those with most to do first.
    """

    found: Found
    strategy: Strategy
    alternatives: Sequence[Alternative] = ()

    @property
    def other_plans(self) -> list[tuple[str, Candidate]]:
        """Plain data parallel, if that was not found, and the best of each other mesh; what they are called first."""
        others = [(mesh_of(each), each) for each in self.found.others]
        plain = self.found.data_parallel
        return others if plain is None or not self.found.best.layouts else [("data parallel", plain), *others]

    def costs(self, prediction: Prediction) -> tuple[str, str, str]:
        """Milliseconds of another step, how much longer that is, and what a rank holds."""
        longer = f"{prediction.seconds / self.found.best.prediction.seconds - 1:+.2%}"
        return f"{prediction.seconds * 1e3:.3f}", longer, size(prediction.num_bytes)

    def note(self, prediction: Prediction) -> str:
        """That a plan does not fit into the memory, if so."""
        return "" if prediction.num_bytes <= self.found.memory else "does not fit"


def strategy_of(found: Found, entries: tuple[Entry, ...], recompute: Sequence[str], name: str) -> Strategy:
    """The plan as a strategy file has it, with patterns of variables and of layers that are computed again."""
    prediction = found.best.prediction
    what = f"Found by the search '{found.mode}': {milliseconds(prediction.seconds)} a step and "
    what += f"{size(prediction.num_bytes)} a rank."
    options: dict[str, Any] = {"recompute": list(recompute)} if recompute else {}
    options |= {"zero": found.best.zero} if found.best.zero else {}
    return Strategy(name, what, found.best.mesh if entries else {}, entries, options)


def explanation(answer: Answer) -> str:
    """All of it."""
    found, entries = answer.found, answer.strategy.entries
    prediction = found.best.prediction
    console = Console(file=io.StringIO(), width=WIDTH, color_system=None)
    console.print(
        f"Search '{found.mode}', {size(found.memory)} a rank: {mesh_of(found.best)}, "
        f"{milliseconds(prediction.seconds)} a step."
    )
    console.print(held(prediction))
    if entries:
        console.print(table(("variables", "layout"), [(entry.pattern, divisions(entry.axes)) for entry in entries]))
    elif found.best.zero < 3:
        console.print("Every rank holds all variables: data parallel.")
    if found.best.zero:
        console.print(f"Ranks with other rows divide {DIVIDED[found.best.zero]}: zero={found.best.zero}.")
    if again := answer.strategy.options.get("recompute"):
        console.print(f"Computed again in the backward pass: {', '.join(again)}.")
    most = sorted(prediction.by_layer.items(), key=lambda item: -item[1])[:LAYERS]
    parts = [(layer or OUTSIDE, f"{each * 1e3:.3f}", f"{each / prediction.seconds:.1%}") for layer, each in most]
    console.print(table(("layer", "ms a step", "part"), parts))
    others = [(name, *answer.costs(each.prediction), answer.note(each.prediction)) for name, each in answer.other_plans]
    console.print(table(("why not", *COSTS, ""), others))
    if answer.alternatives:
        rows = [
            (
                *(each.pattern, divisions(each.chosen), divisions(each.axes), *answer.costs(each.prediction)),
                ", ".join(filter(None, [answer.note(each.prediction), "" if each.is_free else "others as they are"])),
            )
            for each in answer.alternatives
        ]
        console.print(table(("why not, for variables", "which lie", "so", *COSTS, ""), rows))
    return console.file.getvalue().rstrip()  # type: ignore[attr-defined]


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """Texts below each other."""
    made = Table(*columns, box=None, pad_edge=False)
    for row in rows:
        made.add_row(*row)
    return made


def mesh_of(candidate: Candidate) -> str:
    """As "batch 4 x model 2"."""
    return " x ".join(f"{axis} {number}" for axis, number in candidate.mesh.items())


def milliseconds(seconds: float) -> str:
    """As "3.7 ms"."""
    return f"{short(seconds * 1e3)} ms"


def held(prediction: Prediction) -> str:
    """A sentence about the memory of a rank."""
    parts = ", ".join(f"{name} {size(num_bytes)}" for name, num_bytes in prediction.held.items())
    return f"A rank holds {size(prediction.num_bytes)}: {parts}."


def as_json(answer: Answer) -> dict[str, Any]:
    """The plan, what it costs and what others would, as JSON can carry it."""
    found = answer.found

    def candidate(each: Candidate) -> dict[str, Any]:
        prediction = each.prediction
        return {"mesh": each.mesh, "seconds": prediction.seconds, "bytes": prediction.num_bytes, **prediction.parts}

    def alternative(each: Alternative) -> dict[str, Any]:
        return {
            "pattern": each.pattern,
            "shape": each.shape,
            "chosen": each.chosen,
            "layout": each.axes,
            "seconds": each.prediction.seconds,
            "bytes": each.prediction.num_bytes,
            "others_free": each.is_free,
        }

    return {
        "search": found.mode,
        "memory": found.memory,
        "best": candidate(found.best),
        "recompute": answer.strategy.options.get("recompute", []),
        "zero": found.best.zero,
        "layout": {entry.pattern: entry.axes for entry in answer.strategy.entries},
        "layers": found.best.prediction.by_layer,
        "others": list(map(candidate, found.others)),
        "data_parallel": None if found.data_parallel is None else candidate(found.data_parallel),
        "alternatives": list(map(alternative, answer.alternatives)),
    }
