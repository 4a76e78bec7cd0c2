"""What the search knows of memory: what the backward pass keeps, loops, and layers that are computed again."""

import itertools
import json
import math
from dataclasses import replace

import pytest

from keras_par.plan.cost import Moment, most_held, predict, waiting
from keras_par.plan.trace import Parameter, Trace
from keras_par.plan.training_setup import Setting
from keras_par.searching import dynamic
from keras_par.searching.memory_limited import within
from keras_par.searching.problem_builder import SUMS, Choice, Maker
from tests import search_tasks
from tests.commands import run_plan
from tests.known_machine import KNOWN
from tests.ranks.pool import together
from tests.test_search import require_as_alone
from tests.traces import FLOAT, Layers, drawn_products

ROWS, LENGTH, WIDTH, HEADS = 8, 16, 64, 4


def test_a_loop_costs_its_rounds(ranks):
    """Six steps of an LSTM of 16 units that reads 16 numbers: two products for four gates, and twice that backward."""
    [found] = ranks(1).run(search_tasks.look, name="recurrent")
    [loop] = [aside for aside in found["asides"] if aside.layer == "loop"]
    assert loop.flops == 6 * 2 * (16 + 16) * 4 * 16 * 3
    assert loop.kept_bytes >= 6 * 4 * 16 * FLOAT  # at least the gates of each step


def test_what_is_kept_is_what_gradients_read(ranks):
    [found] = ranks(1).run(search_tasks.look, name="gpt")
    kept = {(each.name, each.layer): each for each in found["operations"]}
    up, gelu = kept["numpy.matmul", "up_0"], kept["nn.gelu", "up_0"]
    assert set(up.keeps) == set(up.operands)
    # gelu(x) = x / 2 * erfc(-x / sqrt(2)): the two factors, and what erfc is of.
    assert gelu.keeps == () and gelu.inner == ((gelu.results[0], 3 * FLOAT),)
    assert kept["numpy.add", "gpt"].keeps == () == kept["numpy.add", "gpt"].inner
    [relu] = [
        each for each in ranks(1).run(search_tasks.look, name="two_layers")[0]["operations"] if "relu" in each.name
    ]
    assert relu.keeps == relu.results  # its gradient asks where the output is above 0


def test_what_is_kept_goes_while_gradients_come():
    """Three layers, backward from the last: at first all is kept, in the end all gradients are there."""
    first, second, third = (
        Moment(kept=100, passing=5, gradients=10, shared=10),
        Moment(kept=40, passing=80, recomputed=9, gradients=20, sums=20),
        Moment(kept=10, passing=70, gradients=30, shared=30),
    )
    held = {"activations": 140, "gradients": 50, "sums": 45, "recomputed": 9, "passing": 80}
    assert most_held([first, second, third], 25) == held
    held = {"activations": 150, "gradients": 30, "sums": 25, "recomputed": 0, "passing": 200}
    assert most_held([first, second, replace(third, passing=200)], 25) == held
    held = {"activations": 100, "gradients": 950, "sums": 45, "recomputed": 0, "passing": 5}
    assert most_held([replace(first, gradients=900), second, third], 25) == held
    assert set(most_held([Moment()], 25).values()) == {0}


def test_gradients_wait_for_earlier_operations():
    """Tensor 7 is made by the first operation, and read by the second and the last."""
    assert waiting([{7: 10}, {7: 10, 8: 3}, {8: 3, 9: 3}, {9: 3}, {9: 3, 7: 10}]) == [0, 0, 10, 10, 0]
    assert waiting([]) == []


def tied_with_a_skip() -> Trace:
    """Products of 8 columns for data of 4, two by one weight, and a sum over the second of them."""
    layers = Layers(4)
    layers.product("first", 8)
    early = layers.gelu("first")
    weight = layers.product("tied", 8)
    layers.gelu("wide")
    layers.product("again", 8, weight)
    layers.add("sum", early)
    return layers.trace


@pytest.mark.parametrize(
    ("num_rows", "recomputed", "held"),
    [
        # At the second GELU: what it and earlier ones keep, the gradient of the tied weight, which begins with its last
        # product, and that of the early tensor, which waits.
        (1024, (), {"activations": 4 + 3 * 8 + 8 + 3 * 8, "passing": 3 * 8 + 8 + 8 + 8}),
        (1024, ("wide",), {"activations": 4 + 3 * 8 + 8 + 8, "recomputed": 3 * 8, "passing": 3 * 8 + 8 + 8 + 8}),
        # At the first product, with the gradients of both weights, where one row has less than they.
        (1, ("first", "wide"), {"activations": 4, "recomputed": 3 * 8, "passing": 8}),
    ],
)
def test_the_moment_when_most_is_held_is_found(num_rows, recomputed, held):
    setting = Setting(KNOWN, {"batch": 2, "model": 1}, "batch", 2 * num_rows)
    found = predict(tied_with_a_skip(), {}, setting, recomputed).held
    first, tied = 4 * 8 * FLOAT, 8 * 8 * FLOAT
    gradients = tied if num_rows > 1 else tied + first
    rows = {name: numbers * num_rows * FLOAT for name, numbers in held.items()}
    assert found == {"variables": first + tied, "gradients": gradients, "sums": gradients, **rows}


SHARES = (0.1, 0.25, 0.4, 0.55, 0.7, 0.85)  # of what is between the least memory and that of the fastest plan


def test_what_is_found_within_a_memory_is_near_the_best_of_all():
    """All layouts and all choices of layers to compute once more are looked at, whose steps fit."""
    above = [part for seed in range(20) for part in above_the_best(seed)]
    assert len(above) == 20 * len(SHARES)
    assert sum(part <= 0.01 for part in above) >= 0.99 * len(above)
    assert not any(map(math.isinf, above))  # something is found for all


def above_the_best(seed: int) -> list[float]:
    """By which part of its time what is found is slower than the best, for some sizes of memory."""
    trace, num_rows = drawn_products(seed)
    setting = Setting(KNOWN, {"batch": 2, "model": 1}, "batch", num_rows)
    once, again = (Maker(trace, setting, recomputes=recomputes) for recomputes in (False, True))
    fastest = step_of(once, dynamic.Solver(once.problem()).solve())
    nodes = [*again.variable_nodes, *again.again.values()]
    choices = list(itertools.product(*(range(len(again.states[node])) for node in nodes)))
    assert len(choices) == 64
    steps = [step_of(again, dict(zip(nodes, choice, strict=True))) for choice in choices]
    least = min(step.num_bytes for step in steps)
    above = []
    for share in SHARES:
        memory = least + share * (fastest.num_bytes - least)
        found = [each[1] for maker in (once, again) if (each := within_sums(maker, memory)) is not None]
        assert all(each.num_bytes <= memory for each in found)
        best = min(step.seconds for step in steps if step.num_bytes <= memory)
        above.append(min((each.seconds for each in found), default=math.inf) / best - 1)
    return above


def within_sums(maker: Maker, memory: float):
    """As a search does it for one mesh and one stage of ZeRO."""
    solvers = [dynamic.Solver(maker.problem(counted)) for counted in SUMS]
    return within(memory, solvers, lambda choice: step_of(maker, choice))


def step_of(maker: Maker, choice: Choice):
    return predict(maker.trace, maker.layouts(choice), maker.setting, maker.recomputed(choice))


def test_gradients_of_variables_that_no_operation_reads_are_held():
    """As those of a model that is all loop."""
    trace = Trace(parameters=[Parameter("loop/kernel", (8, 4), FLOAT, is_trainable=True, slot_bytes=3)])
    found = predict(trace, {}, Setting(KNOWN, {"batch": 2, "model": 1}, "batch", 8))
    assert found.held == {"variables": 128, "slots": 3, "gradients": 128, "sums": 128}
    assert found.num_bytes == 387


@pytest.mark.parametrize("search", ["dynamic", "recursive", "propagation", "exact"])
def test_layers_are_computed_again_where_their_tensors_do_not_fit(search, ranks):
    """First the attention, whose scores take most for what they cost, then the layers with a GELU."""
    options = {"name": "long_gpt", "batch_size": 32, "num_ranks": 2, "mesh": (2, 1), "machine": KNOWN.text()}
    options |= {"search": search}
    [plain] = ranks(1).run(search_tasks.find_best, **options)
    assert plain["recomputed"] == ()
    again = []
    for part in (0.8, 0.7):
        [found] = ranks(1).run(search_tasks.find_best, memory=part * plain["bytes"], **options)
        assert found["bytes"] <= part * plain["bytes"] and found["seconds"] > plain["seconds"]
        again.append(found["recomputed"])
    assert again == [("attention_0", "attention_1"), ("attention_0", "up_0", "attention_1", "up_1")]


def test_a_layer_with_state_is_not_computed_again(ranks):
    [found] = ranks(1).run(search_tasks.look, name="normalized")
    blocks = {each.layer: each.block for each in found["operations"]}
    assert blocks["hidden"] == "hidden" and blocks["norm"] == ""


@pytest.mark.slow
@pytest.mark.parametrize("inline", [False, True])
def test_a_plan_that_computes_layers_again_trains_as_one_process(inline, ranks, plain, exactness):
    machine = KNOWN.text()
    options = {"name": "long_gpt", "batch_size": 8, "num_ranks": 2, "mesh": (2, 1), "machine": machine}
    [whole] = ranks(1).run(search_tasks.find_best, **options)
    limits = {"memory": 0.75 * whole["bytes"], "mesh": (2, 1)}
    if inline:
        begun = ranks(2).begin(search_tasks.train_inline, name="long_gpt", machine=machine, **limits)
    else:
        begun = ranks(2).begin(search_tasks.search_and_train, name="long_gpt", options=limits, machine=machine)
    results, [alone] = together(begun, plain.begin(search_tasks.train, name="long_gpt"))
    require_as_alone(results, alone, exactness)
    for result in results:
        assert r"attention_\d+" in result["options"]["recompute"]
        assert {"attention_0", "attention_1"} <= set(result["again"])
        assert result.get("again_after_compile", result["again"]) == result["again"]


@pytest.mark.long
def test_a_plan_that_computes_layers_again_is_planned_from_its_file(ranks, tmp_path):
    path, machine = tmp_path / "found.toml", tmp_path / "machine.toml"
    machine.write_text(KNOWN.text())
    common = f"tests/search_tasks.py:long_gpt --ranks 2 --batch-size 32 --machine {machine} --json"
    searched = run_plan(ranks, f"{common} --search dynamic --mesh 2x1 --memory 130MB --write {path}")
    planned = run_plan(ranks, f"{path} {common}")
    assert searched.status == 0 == planned.status, searched.errors + planned.errors
    found, plan = json.loads(searched.output), json.loads(planned.output)
    assert r"attention_\d+" in found["recompute"] and found["best"]["recomputed"] > 0
    for key in ("seconds", "bytes"):
        assert plan["prediction"][key] == pytest.approx(found["best"][key], rel=1e-9)
