"""A plan as a page with a picture of the mesh, the layers and what they send."""

import importlib.resources
from collections import defaultdict
from pathlib import Path
from typing import Any

from keras_par.distribution.describe import divisions, megabytes, ranks_shown, sent_by_layer, shown, summary
from keras_par.planning.dry_run import Plan


def write_page(plan: Plan, path: Path) -> None:
    """Writes one self-contained HTML file.

    Raises:
        ValueError: jinja2 is not installed.
    """
    try:
        import jinja2
    except ModuleNotFoundError:
        raise ValueError("keras-par: --html needs jinja2: run 'pip install jinja2'.") from None
    text = importlib.resources.files("keras_par.planning").joinpath("page.html.j2").read_text()
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    path.write_text(
        environment.from_string(text).render(
            plan=plan,
            shown=shown,
            ranks_shown=ranks_shown,
            divisions=divisions,
            megabytes=megabytes,
            **parts(plan),
        )
    )


def parts(plan: Plan) -> dict[str, Any]:
    """What the page shows: the mesh's cells, and the layers with their variables and collectives."""
    sent = sent_by_layer(plan.collectives)
    variables: defaultdict[str, list] = defaultdict(list)
    for row in plan.description.variables:
        variables[row.path.rpartition("/")[0]].append(row)
    layers = [
        {"row": row, "variables": variables.pop(row.layer, []), "sent": sent.get(row.layer, "")}
        for row in plan.description.outputs["train_step"]
    ]
    rest = [row for rows in variables.values() for row in rows]
    return {"cells": cells(plan), "layers": layers, "rest": rest, "total": summary(plan.collectives) or "nothing"}


def cells(plan: Plan) -> list[list[dict[str, Any]]]:
    """The ranks as rows of the mesh's last axis; those that this rank's groups hold are marked by axis."""
    mesh = plan.description.mesh or {"ranks": plan.num_ranks}
    width = list(mesh.values())[-1]
    groups = {call.ranks for call in plan.collectives}
    marked = {rank for ranks in groups if len(ranks) < plan.num_ranks for rank in ranks}
    numbers = range(plan.num_ranks)
    return [
        [
            {"rank": rank, "is_own": rank == plan.rank, "is_near": rank in marked}
            for rank in numbers[start : start + width]
        ]
        for start in range(0, plan.num_ranks, width)
    ]
