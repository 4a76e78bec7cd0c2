"""What a search found as a page: the mesh, the layouts, their time and memory, and why it is not another plan."""

import math
from pathlib import Path

from keras_par.base.sizes import size
from keras_par.plan.mesh import Mesh
from keras_par.planning.page import layers_of, memory_of, picture_of, write
from keras_par.searching.explain import Answer, mesh_of, milliseconds


def write_page(answer: Answer, model: str, path: Path) -> None:
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
