"""The pages of plans and of searches: files from templates, with pictures of mesh, memory and layers."""

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from keras_par.base.sizes import size
from keras_par.distribution.describe import (
    OPEN_SIZES,
    divisions,
    ranks_shown,
    sent_by_layer,
    shown,
    summary,
)
from keras_par.plan.cost import Prediction
from keras_par.plan.mesh import Mesh
from keras_par.planning.dry_run import Plan
from keras_par.searching.explain import OUTSIDE, Answer, mesh_of, milliseconds

LINES, CELLS = 16, 32  # of a mesh that are shown
LINE = 8  # ranks of a line, where the mesh has one axis
SMALL = 0.25  # the part of a limit below which a bar is also shown enlarged


def write_plan(plan: Plan, path: Path) -> None:
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


def write_found(answer: Answer, model: str, path: Path) -> None:
    """Writes one self-contained HTML file.

    Args:
        answer: of the search.
        model: what it is of.
        path: of the file.

    Raises:
        ValueError: jinja2 is not installed.
    """
    found, best = answer.found, answer.found.best
    write(
        "search.html.j2",
        path,
        answer=answer,
        model=model,
        facts=[
            ("Search", found.mode),
            ("Mesh", mesh_of(best)),
            ("A step", milliseconds(best.prediction.seconds)),
            ("A rank holds", size(best.prediction.num_bytes)),
            ("Memory of a rank", size(found.memory)),
        ],
        picture=picture_of(best.mesh, 0, neighbours(best.mesh)),
        held=memory_of(best.prediction, found.memory),
        layers=layers_of(best.prediction),
    )


def neighbours(sizes: dict[str, int]) -> set[int]:
    """The ranks along some of the axes from rank 0."""
    num_ranks = math.prod(sizes.values())
    mesh = Mesh(tuple(sizes.values()), tuple(sizes), tuple(range(num_ranks)))
    groups = [mesh.groups(axis)[0] for axis in sizes]
    return {rank for group in groups if len(group) < num_ranks for rank in group}


def write(template: str, path: Path, **values: Any) -> None:
    """Writes one self-contained HTML file.

    Raises:
        ValueError: jinja2 is not installed.
    """
    try:
        import jinja2
    except ModuleNotFoundError:
        raise ValueError("keras-par: --html needs jinja2: run 'pip install jinja2'.") from None
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {"shown": shown, "divisions": divisions, "size": size, "milliseconds": milliseconds}
    path.write_text(environment.get_template(template).render(values), encoding="utf-8")


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


def memory_of(prediction: Prediction, limit: float) -> dict[str, Any]:
    """The parts of a rank's memory as percents of its limit; where that is much larger, also of their sum."""
    total = prediction.num_bytes
    scales = [limit] if total > SMALL * limit else [limit, total]
    return {
        "total": size(total),
        "limit": size(limit),
        "parts": [(name, size(part)) for name, part in prediction.held.items()],
        "bars": [[100 * part / scale for part in prediction.held.values()] for scale in scales],
    }


def layers_of(prediction: Prediction) -> list[dict[str, Any]]:
    """Time and bytes of each layer, with what belongs to none."""
    sent: Counter[str] = Counter()
    for _, num_bytes, layer in prediction.collectives:
        sent[layer] += num_bytes
    rows = [(name or OUTSIDE, seconds, sent[name]) for name, seconds in prediction.by_layer.items()]
    rows += [("(sums of gradients)", 0.0, prediction.gradient_bytes)] if prediction.gradient_bytes else []
    rest = prediction.seconds - sum(prediction.by_layer.values())
    rows += [("(any step)", rest, 0)] if round(rest, 9) else []
    longest, most = max(seconds for _, seconds, _ in rows), max(num_bytes for _, _, num_bytes in rows)
    return [
        {
            "name": name,
            "milliseconds": f"{seconds * 1e3:.3f}" if seconds else "",
            "time": seconds and 100 * seconds / longest,
            "num_bytes": f"{num_bytes:,}" if num_bytes else "",
            "sent": num_bytes and 100 * num_bytes / most,
        }
        for name, seconds, num_bytes in rows
    ]
