"""Each strategy of the catalogue divides its models, and ends where one process ends."""

import math
import re

import pytest

from keras_par.distribution.load_strategy import catalogue
from keras_par.plan.layout import matches
from keras_par.plan.strategy_file import read_strategy
from tests import catalogue_tasks
from tests.catalogue_cases import CASES, MESHES
from tests.compare import relative_distance

pytestmark = pytest.mark.grappler  # which merges, moves and leaves out operations
FILES = {file.stem: read_strategy(file) for file in catalogue().glob("*.toml")}
TWINS: dict[str, dict] = {}


def runs() -> list:
    """Each case on each mesh."""
    return [
        pytest.param(name, mesh, id=f"{name}-{mesh[0]}x{mesh[1]}", marks=[pytest.mark.slow] * (mesh in case.slow))
        for name, case in CASES.items()
        for mesh in MESHES
    ]


def test_every_file_has_a_case():
    assert len(FILES) >= 20
    assert {case.strategy for case in CASES.values()} == set(FILES)


@pytest.mark.parametrize("name", FILES)
def test_a_file_says_what_it_is(name):
    assert FILES[name].name == name
    assert FILES[name].description.endswith(".")


@pytest.mark.parametrize(("name", "mesh"), runs())
def test_a_strategy_ends_where_one_process_ends(name, mesh, ranks, plain, exactness):
    case, file = CASES[name], FILES[CASES[name].strategy]
    twin = twin_of(name, plain)
    # Eagerly it takes half as long; what 4 ranks do in `make test-all` only, they do as a graph.
    arguments = {"name": name, "mesh": mesh, "run_eagerly": mesh == (1, 2) and (2, 2) in case.slow}
    results = ranks(math.prod(mesh)).run(catalogue_tasks.train_divided, **arguments)
    assert [(result["rank"], result["size"]) for result in results] == [
        (rank, math.prod(mesh)) for rank in range(math.prod(mesh))
    ]
    assert relative_distance(twin["initial"], twin["weights"]) > 10 * case.tolerance  # it has learned something
    for result in results:
        exactness(relative_distance(result["weights"], twin["weights"]), case.tolerance)
        if file.entries:
            divided = {path for path, shape in result["shapes"].items() if result["held"][path] != shape}
            assert divided == expected(file, result["shapes"], mesh)
            matrices = [path for path, shape in result["shapes"].items() if len(shape) > 1]
            assert [path for path in matrices if not any(matches(each.pattern, path) for each in file.entries)] == []
            assert result["fraction"] < 0.7
        else:
            assert result["held"] == result["shapes"]


def twin_of(name: str, plain) -> dict:
    """What one process ends with, trained once for all meshes."""
    if name not in TWINS:
        [TWINS[name]] = plain.run(catalogue_tasks.train_plain, name=name)
    return TWINS[name]


def expected(file, shapes: dict, mesh: tuple[int, int]) -> set[str]:
    """The paths of the variables that the file's own words divide on this mesh; at least one."""
    found = set()
    for path, shape in shapes.items():
        axes = [entry.axes for entry in file.entries if re.fullmatch(entry.pattern, path)]
        assert len(axes) <= 1, path
        if axes and any(axis is not None and size % mesh[1] == 0 for size, axis in zip(shape, axes[0], strict=False)):
            found.add(path)
    assert found
    return found
