"""Layers that are computed again in the backward pass train as one process without that, and keep less memory."""

import pytest

from keras_par.plan.options import Options
from keras_par.plan.strategy_file import parse_strategy, strategy_text
from tests import memory, recompute_tasks
from tests.compare import relative_distance
from tests.jobs import start
from tests.launcher import program
from tests.ranks.pool import together

pytestmark = pytest.mark.grappler  # which merges, moves and leaves out operations
LAYOUTS = [recompute_tasks.DATA, *recompute_tasks.LAYOUTS]
RECOMPUTED = {
    "blocks": ("block_.*",),
    "dense": ("up", "drop", "down"),
    "attention": ("embedding", "attention", "add", "up", "down"),
    "nested": ("inner",),
    "state": ("norm", "averaging", "up"),
    "function": (),
    "loop": ("loop",),
    "own_step": ("block_.*", "first", "averaging", "loop"),
}


def compare(ranks, plain, exactness, name: str, tolerance: float, size: int = 2, policy: str = "float32", **options):
    """What the ranks tell, which end where one process ends without recomputation."""
    [twin], results = together(
        plain.begin(recompute_tasks.train_plain, name=name, policy=policy),
        ranks(size).begin(recompute_tasks.train_recomputed, name=name, policy=policy, **options),
    )
    assert [each["num_ranks"] for each in results] == [size] * size
    for each in results:
        exactness(relative_distance(each["weights"], twin["weights"]), tolerance)
        if tolerance <= 1e-6:
            assert each["loss"] == pytest.approx(twin["loss"], rel=1e-5)
    return results


PRODUCTS = {f"block_{number}/{part}" for number in range(recompute_tasks.NUM_BLOCKS) for part in ("up", "down")}
ATTENDING = {f"attention/{part}" for part in ("query", "key", "value", "attention_output")} | {"add", "up", "down"}
# What a step sends that computes layers again, which sends what goes forward in them twice, and for which layers.
SENT = {
    ("blocks", "columns and rows"): ({"all_reduce": 4 + 2}, PRODUCTS),
    ("blocks", "stored along the batch"): ({"all_gather": 5 + 4, "reduce_scatter": 5}, PRODUCTS | {"first"}),
    ("blocks", recompute_tasks.DATA): ({}, set()),
    ("attention", "columns and rows"): ({"all_gather": 9 + 4, "all_reduce": 2 + 2, "reduce_scatter": 4}, ATTENDING),
}


def trainings() -> list:
    """Each with each layout, most of those that divide the work in `make test-all`."""
    quick = (recompute_tasks.DATA, "stored along the batch")
    pairs = [(name, layout) for name in RECOMPUTED for layout in LAYOUTS if (name, layout) not in SENT]
    return [
        pytest.param(*pair, marks=[pytest.mark.slow] * (pair[1] not in quick and pair[0] not in ("state", "attention")))
        for pair in pairs
    ]


@pytest.mark.parametrize(("name", "layout"), trainings())
def test_layers_that_are_recomputed_train_as_one_process(name, layout, ranks, plain, exactness):
    compare(ranks, plain, exactness, name, 1e-6, layout=layout, recompute=RECOMPUTED[name])


@pytest.mark.long
@pytest.mark.parametrize(("name", "layout"), SENT)
def test_they_send_twice_what_goes_forward(name, layout, ranks, plain, exactness):
    results = compare(ranks, plain, exactness, name, 1e-6, layout=layout, recompute=RECOMPUTED[name])
    assert [(each["sent"], each["layers"]) for each in results] == [SENT[name, layout]] * 2


@pytest.mark.parametrize("layout", LAYOUTS[:2])
def test_logits_are_remembered(layout, ranks, plain, exactness):
    compare(ranks, plain, exactness, "sharp", 1e-6, policy="float64", layout=layout, recompute=("down", "up"))


@pytest.mark.long
@pytest.mark.parametrize("name", ["dense", "attention", "state", "loop"])
def test_one_rank_recomputes(name, ranks, plain, exactness):
    compare(ranks, plain, exactness, name, 1e-6, 1, layout=recompute_tasks.DATA, recompute=RECOMPUTED[name])


@pytest.mark.parametrize("mode", ["full", "activations", "larger_than", "list_of_layers"])
@pytest.mark.parametrize("layout", LAYOUTS[:2])
@pytest.mark.parametrize("name", ["blocks", pytest.param("attention", marks=pytest.mark.slow)])
def test_every_mode_of_kerass_scope_trains_as_without(name, layout, mode, ranks, plain, exactness):
    compare(ranks, plain, exactness, name, 1e-6, layout=layout, recompute=(), mode=mode)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "tolerance"),
    [pytest.param("mixed_float16", 2e-3, marks=pytest.mark.slow), ("mixed_bfloat16", 1e-2)],
)
@pytest.mark.parametrize("layout", LAYOUTS[:2])
@pytest.mark.parametrize("name", ["blocks", "dense"])
def test_mixed_precision(name, layout, policy, tolerance, ranks, plain, exactness):
    options = {"layout": layout, "policy": policy, "recompute": RECOMPUTED[name]}
    compare(ranks, plain, exactness, name, tolerance, **options)
    for found in ranks(2).run(recompute_tasks.train_with_and_without, name=name, **options):
        exactness(relative_distance(*found), 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("layout", [recompute_tasks.DATA, pytest.param("columns and rows", marks=pytest.mark.slow)])
def test_a_step_takes_less_memory(layout):
    job = start("mpirun", 2, program("recompute_memory"), layout, **memory.KEEPING_NONE)
    assert job.status == 0, job.output
    peaks = [tuple(map(float, each)) for each in job.find(r"recomputed (\S+) kept (\S+)")]
    assert len(peaks) == 2
    assert all(recomputed < 0.6 * kept for recomputed, kept in peaks), peaks


def test_names_are_those_of_the_models_layers(ranks):
    for found in ranks(1).run(recompute_tasks.mark_and_undo):
        assert found == {"marked": ["first", "down"], "whole": ["inner"], "undone": []}


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("draws", "'draws' cannot be recomputed, because its operation RandomUniform at "),
        ("name", "recompute's pattern 'blok_0' matches no layer; nearest are 'block_0', 'block_1', "),
    ],
)
def test_what_cannot_be_is_one_sentence(kind, said, ranks):
    for found in ranks(2).run(recompute_tasks.refused, kind=kind):
        assert f"keras-par: {said}" in found, found


@pytest.mark.parametrize(("patterns", "said"), [("up", "no tuple of patterns"), (("(",), "no regular expression")])
def test_patterns_are_looked_at(patterns, said):
    with pytest.raises(ValueError, match=said):
        Options(recompute=patterns)


def test_a_strategy_file_names_layers():
    strategy = parse_strategy("[options]\nrecompute = [\"block_.*\", 'up\\d']\n", "mine.toml", "mine")
    assert strategy.options == {"recompute": ["block_.*", r"up\d"]}
    assert parse_strategy(strategy_text(strategy), "mine.toml", "mine") == strategy
    for wrong in ('"up"', "[3]", '["("]'):
        with pytest.raises(ValueError, match=r"keras-par: mine.toml, line 2: .*(in a list|correct it)\.$"):
            parse_strategy(f"[options]\nrecompute = {wrong}\n", "mine.toml", "mine")
