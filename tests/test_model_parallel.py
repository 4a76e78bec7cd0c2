"""Model parallelism gives what one process gives, whatever is divided over whatever mesh."""

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests import layout_tasks, random_models
from tests.compare import log_distance, relative_distance
from tests.layout_cases import LAYOUT_CASES
from tests.ranks.pool import together
from tests.training_cases import TRAININGS

TOLERANCE = 1e-5
MESHES = [(1, 2), (2, 1), (2, 2), (1, 4)]
# What every run tries; `make test-all` tries each layout with both optimizers on all meshes, and all ways of training.
QUICK_LAYOUTS = """
    dense-columns-rows dense-columns-columns einsum-dense embedding-by-vocabulary vocabulary attention
    grouped-attention-whole-keys conv2d depthwise-conv batch-normalization layer-normalization custom-layer recurrent
    outputs softmax-of-vocabulary subclassed lists
"""
QUICK_TRAININGS = ("overflow", "unit-norm", "xla", "mixed-float16")
QUICK = {
    ((1, 2), "adam"): set(QUICK_LAYOUTS.split()),
    ((2, 2), "sgd"): {"dense-columns-rows", "vocabulary", "attention"},
}
QUICK[(2, 1), "adam"] = {"over-the-batch", "over-batch-and-model", "batch-normalization"}


def sweep() -> list:
    found = []
    assert set().union(*QUICK.values()) <= set(LAYOUT_CASES)
    for mesh in MESHES:
        for optimizer in ("adam", "sgd"):
            for name in LAYOUT_CASES:
                is_quick = name in QUICK.get((mesh, optimizer), ())
                found.append(pytest.param(name, optimizer, mesh, marks=() if is_quick else pytest.mark.slow))
    return found


def compare(results: list[dict], twin: dict, size: int, exactness, tolerance: float = TOLERANCE) -> None:
    """Every rank ends where the twin ends, and holds only a part where the layout divides anything."""
    assert [result["rank"] for result in results] == list(range(size))
    assert twin["held"] == twin["parameters"]
    for result in results:
        assert result["size"] == size
        assert (result["held"] < result["parameters"]) == bool(result["axes"])
        exactness(relative_distance(result["weights"], twin["weights"]), tolerance)
        exactness(relative_distance([result["predictions"]], [twin["predictions"]]), 3 * tolerance)
        assert log_distance(result["logs"], twin["logs"]) < max(2e-5, tolerance)


@pytest.mark.parametrize(("name", "optimizer", "mesh"), sweep())
def test_a_mesh_ends_where_one_process_ends(name, optimizer, mesh, ranks, plain, exactness):
    size = mesh[0] * mesh[1]
    [twin], results = together(
        plain.begin(layout_tasks.train_plain, name=name, optimizer=optimizer),
        ranks(size).begin(layout_tasks.train_divided, name=name, optimizer=optimizer, mesh=mesh),
    )
    compare(results, twin, size, exactness)
    for result in results:
        assert result["evaluated"] == pytest.approx(twin["evaluated"], rel=2e-5)


@pytest.mark.long
def test_a_mesh_of_three_axes(ranks, plain, exactness):
    [twin], results = together(
        plain.begin(layout_tasks.train_on_three_axes, mesh=None),
        ranks(4).begin(layout_tasks.train_on_three_axes, mesh=(1, 2, 2)),
    )
    compare(results, twin, 4, exactness)


def test_two_strategies_on_one_mesh(ranks, plain, exactness):
    [twin], results = together(
        plain.begin(layout_tasks.train_by_two_strategies, distributed=False),
        ranks(2).begin(layout_tasks.train_by_two_strategies, distributed=True),
    )
    assert len(results) == 2
    for result in results:
        assert result["summed"] == [False, True]
        for weights, expected in zip(result["weights"], twin["weights"], strict=True):
            exactness(relative_distance(weights, expected), 1e-6)


@pytest.mark.parametrize(
    ("axes", "slot"),
    [({}, (6, 4)), ({"slots": ()}, (6, 8)), ({"slots": ("model", None)}, (3, 8)), ({"gradient": ()}, (6, 4))],
    ids=str,
)
def test_slots_lie_as_the_placement_says(axes, slot, ranks):
    results = ranks(2).run(layout_tasks.make_slots, axes=axes)
    assert results == [{"alike": True, "kernel": (6, 4), "slot": slot, "whole": ((6, 8), (6, 8))}] * 2


def ways() -> list:
    assert set(QUICK_TRAININGS) <= set(TRAININGS)
    return [
        pytest.param(name, mesh, marks=() if name in QUICK_TRAININGS and mesh == (1, 2) else pytest.mark.slow)
        for name in TRAININGS
        for mesh in ((1, 2), (2, 2))
    ]


@pytest.mark.parametrize(("name", "mesh"), ways())
def test_every_way_of_training_ends_where_one_process_ends(name, mesh, ranks, plain, exactness):
    size = mesh[0] * mesh[1]
    tolerance = TRAININGS[name].tolerance
    [twin], results = together(
        plain.begin(layout_tasks.train_plain_so, name=name),
        ranks(size).begin(layout_tasks.train_divided_so, name=name, mesh=mesh),
    )
    compare(results, twin, size, exactness, tolerance)
    for result in results:
        exactness(relative_distance(result["slots"], twin["slots"]) if twin["slots"] else 0.0, 10 * tolerance)
        is_ignored = [warning.startswith("keras-par: jit_compile=True is ignored") for warning in result["warnings"]]
        assert all(is_ignored) and bool(is_ignored) == (name == "xla")


@st.composite
def drawn_models(draw):
    """A kind of rows, parts that can follow each other, a mesh, and what chooses a layout for each variable."""
    kind = draw(st.sampled_from(list(random_models.NUM_DIMS)))
    fitting = [name for name, (dims, _) in random_models.PARTS.items() if dims == random_models.NUM_DIMS[kind]]
    part = st.tuples(st.sampled_from(fitting), st.sampled_from([4, 8, 16]), st.sampled_from(["relu", "tanh", "gelu"]))
    mesh = draw(st.sampled_from([(1, 2), (1, 2), (2, 1)]))
    return (
        kind,
        draw(st.lists(part, min_size=1, max_size=4)),
        mesh,
        draw(st.lists(st.integers(0, 99), min_size=3, max_size=9)),
    )


def settle(num_draws: int):
    return settings(
        max_examples=num_draws,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )


def differ_nowhere(drawn, ranks, plain, exactness) -> None:
    kind, parts, mesh, choices = drawn
    [twin], results = together(
        plain.begin(random_models.train, kind=kind, parts=parts),
        ranks(2).begin(random_models.train_divided, kind=kind, parts=parts, mesh=mesh, choices=choices),
    )
    compare(results, twin, 2, exactness)


@pytest.mark.long
@settle(8)
@given(drawn=drawn_models())
def test_random_models_with_random_layouts(drawn, ranks, plain, exactness):
    differ_nowhere(drawn, ranks, plain, exactness)


@pytest.mark.slow
@settle(200)
@given(drawn=drawn_models())
def test_many_random_models_with_random_layouts(drawn, ranks, plain, exactness):
    differ_nowhere(drawn, ranks, plain, exactness)
