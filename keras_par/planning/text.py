"""A plan as text: variables, the outputs of layers, and what is sent."""

import io
from collections import defaultdict
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from keras_par.comm.counting import Call
from keras_par.distribution.describe import WIDTH, divisions, shown

if TYPE_CHECKING:
    from keras_par.planning.dry_run import Plan


def shown_plan(plan: "Plan") -> str:
    """The description of the model, and its layers with what each sends in a training step."""
    console = Console(file=io.StringIO(), width=WIDTH, color_system=None)
    console.print(f"Rank {plan.rank} of {plan.num_ranks}, strategy {plan.strategy}, {plan.batch_size} rows a batch")
    console.print(str(plan.description))
    table = Table(
        "layer", "kind", "output", "layout inferred", "on this rank", "sent in a step", box=None, pad_edge=False
    )
    sent = sent_by_layer(plan.collectives)
    for row in plan.outputs:
        layout = divisions(row.axes)
        table.add_row(row.layer, row.kind, shown(row.shape), layout, shown(row.local_shape), sent.get(row.layer, ""))
    console.print("Layers, in the order of their calls:")
    console.print(table)
    console.print(f"A training step sends {summary(plan.collectives) or 'nothing'}.")
    return console.file.getvalue().rstrip()  # type: ignore[attr-defined]


def sent_by_layer(calls: list[Call]) -> dict[str, str]:
    """For each layer's path a summary of its collectives, forward and backward."""
    found: defaultdict[str, list[Call]] = defaultdict(list)
    for call in calls:
        found[call.layer].append(call)
    return {layer: summary(own) for layer, own in found.items()}


def summary(calls: list[Call]) -> str:
    """How many collectives of each kind there are over how many ranks, and their bytes on this rank."""
    kinds: defaultdict[tuple[str, int], list[int | None]] = defaultdict(list)
    for call in calls:
        kinds[call.kind, call.size].append(call.num_bytes)
    parts = []
    for (kind, size), sizes in kinds.items():
        total = "?" if None in sizes else f"{sum(filter(None, sizes)):,}"
        parts.append(f"{len(sizes)} {kind} over {size} ranks ({total} bytes)")
    return ", ".join(parts)
