"""The pages of plans and of searches: files from templates, with pictures of mesh, memory and layers."""

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from keras_par.base.html_page import page
from keras_par.base.sizes import size
from keras_par.distribution.describe import (
    OPEN_SIZES,
    VariableRow,
    divisions,
    ranks_shown,
    sent_by_layer,
    shown,
    summary,
)
from keras_par.plan.cost import Prediction
from keras_par.plan.mesh import Mesh
from keras_par.planning.dry_run import Plan
from keras_par.searching.explain import OUTSIDE, Answer, milliseconds

LINES, CELLS = 16, 32  # of a mesh that are shown
LINE = 8  # ranks of a line, where the mesh has one axis


def write_plan(plan: Plan, path: Path) -> None:
    """Writes one self-contained HTML file.

    Raises:
        ValueError: jinja2 is not installed.
    """
    groups = {call.ranks for call in plan.collectives}
    near = {rank for ranks in groups if len(ranks) < plan.num_ranks for rank in ranks}
    variables: defaultdict[str, list[VariableRow]] = defaultdict(list)
    for row in plan.description.variables:
        variables[row.path.rpartition("/")[0]].append(row)
    layers = {row.layer for row in plan.description.outputs["train_step"]}
    write(
        "plan.html.j2",
        path,
        plan=plan,
        picture=picture_of(plan.description.mesh or {"ranks": plan.num_ranks}, plan.rank, near),
        variables=variables,
        rest=[row for layer, rows in variables.items() if layer not in layers for row in rows],
        sent=sent_by_layer(plan.collectives),
        open_sizes=OPEN_SIZES,
    )


def write_found(answer: Answer, model: str, path: Path) -> None:
    """Writes one self-contained HTML file about a search for `model`.

    Raises:
        ValueError: jinja2 is not installed.
    """
    sizes = answer.found.best.mesh
    num_ranks = math.prod(sizes.values())
    mesh = Mesh(tuple(sizes.values()), tuple(sizes), tuple(range(num_ranks)))
    groups = [mesh.groups(axis)[0] for axis in sizes]  # of rank 0
    near = {rank for group in groups if len(group) < num_ranks for rank in group}
    write("search.html.j2", path, answer=answer, model=model, picture=picture_of(sizes, 0, near))


def write(template: str, path: Path, **values: Any) -> None:
    functions = (divisions, layers_of, milliseconds, ranks_shown, shown, size, summary)
    named = {function.__name__: function for function in functions}
    path.write_text(page(Path(__file__).with_name(template), named | values), encoding="utf-8")


def picture_of(mesh: Mapping[str, int], own: int, near: Collection[int]) -> dict[str, Any]:
    """The ranks as lines of the mesh's last axis; of one axis alone as lines that fit.

    Args:
        mesh: the sizes of its axes.
        own: the rank that is marked.
        near: those that are marked beside it.
    """
    num_ranks, width = math.prod(mesh.values()), [*mesh.values()][-1]
    if width in (1, num_ranks):
        width = LINE
    starts = range(0, num_ranks, width)[:LINES]
    kinds = dict.fromkeys(near, "near") | {own: "own"}
    lines = [[*range(start, min(start + width, num_ranks))][:CELLS] for start in starts]
    return {
        "axes": " x ".join(f"{axis} {number}" for axis, number in mesh.items()),
        "own": own,
        "lines": [[(rank, kinds.get(rank, "")) for rank in line] for line in lines],
        "num_hidden": num_ranks - sum(map(len, lines)),
    }


def layers_of(prediction: Prediction) -> list[tuple[str, float, int]]:
    """(name, seconds, bytes sent) of each layer, and what belongs to none."""
    sent: Counter[str] = Counter()
    for _, num_bytes, layer in prediction.collectives:
        sent[layer] += num_bytes
    rows = [(name or OUTSIDE, seconds, sent[name]) for name, seconds in prediction.by_layer.items()]
    rows += [("(sums of gradients)", 0.0, prediction.gradient_bytes)] if prediction.gradient_bytes else []
    rest = prediction.seconds - sum(prediction.by_layer.values())
    return rows + ([("(any step)", rest, 0)] if round(rest, 9) else [])
