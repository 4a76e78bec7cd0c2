"""A plan as a page with pictures of mesh and memory, the layers and what they send."""

from collections import defaultdict
from pathlib import Path
from typing import Any

from keras_par.base.sizes import size
from keras_par.distribution.describe import OPEN_SIZES, ranks_shown, sent_by_layer, summary
from keras_par.planning.dry_run import Plan
from keras_par.planning.page import layers_of, memory_of, picture_of, write
from keras_par.searching.explain import milliseconds


def write_page(plan: Plan, path: Path) -> None:
    """Writes one self-contained HTML file.

    Raises:
        ValueError: jinja2 is not installed.
    """
    groups = {call.ranks for call in plan.collectives}
    near = {rank for ranks in groups if len(ranks) < plan.num_ranks for rank in ranks}
    write(
        "plan.html.j2",
        path,
        plan=plan,
        picture=picture_of(plan.description.mesh or {"ranks": plan.num_ranks}, plan.rank, near),
        total=summary(plan.collectives) or "nothing",
        open_sizes=OPEN_SIZES,
        ranks_shown=ranks_shown,
        size=size,
        milliseconds=milliseconds,
        **layers(plan),
        **predicted(plan),
    )


def layers(plan: Plan) -> dict[str, Any]:
    """The layers with their variables and collectives, and the variables of none."""
    sent = sent_by_layer(plan.collectives)
    variables: defaultdict[str, list] = defaultdict(list)
    for row in plan.description.variables:
        variables[row.path.rpartition("/")[0]].append(row)
    layers = [
        {"row": row, "variables": variables.pop(row.layer, []), "sent": sent.get(row.layer, "")}
        for row in plan.description.outputs["train_step"]
    ]
    return {"layers": layers, "rest": [row for rows in variables.values() for row in rows]}


def predicted(plan: Plan) -> dict[str, Any]:
    """Memory and time, if they are predicted."""
    machine, prediction = plan.outlook.machine, plan.outlook.prediction
    if machine is None or prediction is None:
        return {}
    return {"held": memory_of(prediction, machine.memory_gb * 2**30), "predicted": layers_of(prediction)}
