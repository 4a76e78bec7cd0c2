"""The automatic search: its costs are what runs, its plans are the best there are, and they train as one process."""

import itertools
import json
import math
import re
import subprocess
import tomllib
from dataclasses import replace
from random import Random
from unittest import mock

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from keras_par.base.sizes import bytes_of, no_less, size
from keras_par.plan.case import Outcome
from keras_par.plan.machine import Link, read_machine, typical
from keras_par.plan.operation_cost import FLOPS_PER_ELEMENT, work_of
from keras_par.plan.strategy_file import parse_strategy, strategy_text
from keras_par.plan.trace import TRACED_ROWS, Operation, Tensor
from keras_par.searching import dynamic, exact
from keras_par.searching.classes import entries
from keras_par.searching.known_machines import SHIPPED, machine_of
from keras_par.searching.meshes import DATA, MODEL, MODEL_2, halvings, meshes
from keras_par.searching.problem import Problem, Table
from tests import random_models, search_tasks
from tests.commands import run_plan
from tests.known_machine import KNOWN, linked
from tests.patience import PATIENCE
from tests.ranks.pool import REPOSITORY, RankError, scripts, together

HEADS = {f"attention_0/{part}/kernel": (None, "model", None) for part in ("query", "key", "value")}
COLUMNS_AND_ROWS = {"up/kernel": (None, "model"), "up/bias": ("model",), "down/kernel": ("model", None)}
WORDS = {"embedding/embeddings": ("model", None), "logits/kernel": (None, "model"), "logits/bias": ("model",)}
BOTH = {"up/kernel": ("model", "model_2"), "down/kernel": ("model_2", "batch"), "down/bias": ("model",)}
QUERIES_AND_VALUES = {
    "attention_0/query/kernel": (None, "model", None),
    "attention_0/value/kernel": (None, "model_2", None),
}
LAYOUTS = {
    "columns and rows": ("two_layers", COLUMNS_AND_ROWS),
    "rows first": ("two_layers", {"up/kernel": ("model", None), "down/kernel": (None, "model")}),
    "stored by rows": ("two_layers", {"up/kernel": (None, "batch"), "down/kernel": ("batch", "model")}),
    "heads": ("gpt", {**HEADS, "attention_0/attention_output/kernel": ("model", None, None)}),
    "words": ("gpt", WORDS),
    "columns of a table": ("gpt", {"embedding/embeddings": (None, "model")}),
    "scale of a norm": ("gpt", {"norm_0a/gamma": ("model",), "norm_1b/beta": ("model",)}),
    "softmax": ("softmax_of_vocabulary", {"words/kernel": (None, "model"), "hidden/kernel": (None, "model")}),
    "losses of weights": ("penalized", COLUMNS_AND_ROWS),
    "loop": ("recurrent", {"loop/lstm_cell/kernel": (None, "model"), "table/embeddings": (None, "model")}),
}
OVER_THREE_AXES = {name: LAYOUTS[name] for name in ("columns and rows", "rows first", "stored by rows", "heads")}
OVER_THREE_AXES |= {"both": ("two_layers", BOTH), "one tensor along two axes": ("gpt", QUERIES_AND_VALUES)}
# Layers that are computed again, and if a step sends more then.
AGAIN = {
    "columns and rows": (("up", "down"), True),
    "rows first": (("up",), True),
    "stored by rows": (("up", "down"), False),
    "heads": (("attention_0", "up_1"), True),
    "scale of a norm": (("norm_0a", "norm_1b"), False),
}


@pytest.mark.parametrize("mesh", [(1, 2), (2, 2), (1, 4)])
@pytest.mark.parametrize("name", LAYOUTS)
def test_what_is_planned_to_be_sent_is_what_a_step_sends(name, mesh, ranks):
    """Also where layers are computed again."""
    model, layout = LAYOUTS[name]
    again, is_more = AGAIN.get(name, ((), False))
    options = {"name": model, "layout": layout, "mesh": mesh, "recomputed": ((), again) if again else ((),)}
    found = ranks(1).run(search_tasks.compare_named, **options)[0]
    for each in found:
        require_same(each)
    sent = [sum(each["counted"].values()) for each in found]
    assert not is_more or sent[1] > sent[0]


@pytest.mark.parametrize("name", OVER_THREE_AXES)
def test_what_is_planned_over_three_axes_is_what_a_step_sends(name, ranks):
    model, layout = OVER_THREE_AXES[name]
    [[found]] = ranks(1).run(search_tasks.compare_named, name=model, layout=layout, mesh=(2, 2, 2))
    require_same(found)


def require_same(found: dict) -> None:
    both = found["predicted"], found["counted"]
    assert both[0] == both[1], (both[0] - both[1], both[1] - both[0], found["layers"])
    assert found["predicted_gradients"] == found["counted_gradients"]
    assert found["predicted_variables"] == found["counted_variables"]


def require_as_alone(results: list[dict], alone: dict, exactness, num_ranks: int = 2) -> None:
    """Fails unless all ranks end with the names and weights of one process."""
    assert len(results) == num_ranks
    for result in results:
        assert result["paths"] == alone["paths"]
        for ours, theirs in zip(result["weights"], alone["weights"], strict=True):
            exactness(np.abs(ours - theirs).max() / max(np.abs(theirs).max(), 1e-3), 1e-5)


@st.composite
def divided_models(draw):
    kind = draw(st.sampled_from(list(random_models.NUM_DIMS)))
    fitting = [name for name, (dims, _) in random_models.PARTS.items() if dims == random_models.NUM_DIMS[kind]]
    part = st.tuples(st.sampled_from(fitting), st.sampled_from([8, 16]), st.sampled_from(["relu", "tanh", "softmax"]))
    mesh = draw(st.sampled_from([(1, 2), (2, 2), (1, 4), (2, 1)]))
    return kind, draw(st.lists(part, min_size=1, max_size=4)), mesh, draw(st.lists(st.integers(0, 30), min_size=3))


@pytest.mark.slow
@given(divided_models())
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
def test_random_models_send_what_is_planned(ranks, drawn):
    kind, parts, mesh, choices = drawn
    [found] = ranks(1).run(search_tasks.compare_drawn, kind=kind, parts=parts, mesh=mesh, choices=choices)
    require_same(found)


@given(st.integers(1, 10**14))
def test_a_size_that_is_enough_is_read_back_as_enough(num_bytes):
    assert num_bytes <= bytes_of(no_less(num_bytes)) <= 1.01 * num_bytes


SAID = r"keras-par: [^\n]+: (give another|(start (?P<ranks>\d+), or )?give each rank (?P<memory>[\d.]+ ([KMG]i)?B))\."


@pytest.mark.long
@given(
    divided_models(),
    st.integers(1, 24),
    st.sampled_from([1, 8, 12, 64]),
    st.floats(3, 9),
    st.sampled_from(["dynamic", "recursive", "exact"]),
)
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
def test_any_model_memory_and_mesh_ends_in_a_plan_or_a_sentence(ranks, drawn, num_ranks, rows, digits, search):
    kind, parts, _, _ = drawn
    memory = 10**digits
    options = {"num_ranks": num_ranks, "batch_size": rows, "memory": memory, "machine": KNOWN.text()}
    task = {"kind": kind, "parts": parts, "searches": [search]}
    [[found]] = ranks(1).run(search_tasks.search_drawn, **task, **options, alone=search != "recursive")
    if "said" in found:
        said = re.fullmatch(SAID, found["said"])
        assert said is not None, found["said"]
        ways = {"num_ranks": said["ranks"] and int(said["ranks"]), "memory": said["memory"]}
        for name, value in ways.items():  # what it says is enough
            if value is not None:
                other = {"memory": bytes_of(value)} if name == "memory" else {name: value}
                [[again]] = ranks(1).run(search_tasks.search_drawn, **task, **options | other)
                assert "said" not in again, (found, again)
    else:
        assert found["bytes"] <= memory and math.prod(found["mesh"].values()) == num_ranks
        assert all(found["seconds"] <= seconds or num_bytes > memory for seconds, num_bytes in found["others"])
        if search != "recursive":  # which does not try all meshes
            assert found["seconds"] == min(found["alone"])


def best_and_quick(seed: int, ranks) -> float:
    """How many times as long as by the best plan a drawn model takes by that of `recursive`."""
    draw = Random(seed)
    kind, parts = random_models.draw_model(draw)
    num_ranks, rows = draw.choice([2, 4, 6, 16]), draw.choice([1, 4, 16, 256])
    options = {"num_ranks": num_ranks, "batch_size": num_ranks * rows, "memory": 1e12, "machine": linked(draw).text()}
    task = {"kind": kind, "parts": parts, "searches": ["dynamic", "recursive"]}
    [[best, quick]] = ranks(1).run(search_tasks.search_drawn, **task, **options)
    return quick["seconds"] / best["seconds"]


@pytest.mark.long
@pytest.mark.parametrize("seeds", [range(25), pytest.param(range(300), marks=pytest.mark.slow)], ids=len)
def test_recursive_is_near_the_best(seeds, ranks):
    ratios = {seed: best_and_quick(seed, ranks) for seed in seeds}
    assert all(1 - 1e-9 <= ratio <= 1.15 for ratio in ratios.values()), ratios


def test_a_search_adds_up_what_its_plan_is_predicted_to_cost(ranks):
    """On several meshes, with buckets as they are and with small ones."""
    settings_of = [((1, 2), None), ((4, 4), None), ((4, 1), 500)]
    for seed in range(20):
        draw = Random(seed)
        kind, parts = random_models.draw_model(draw)
        options = {"batch_size": 16, "machine": linked(draw).text(), "settings": settings_of}
        [found] = ranks(1).run(search_tasks.costs_of_best, kind=kind, parts=parts, **options)
        for about, (added, predicted) in zip(settings_of, found, strict=True):
            assert added[0] == pytest.approx(predicted[0], rel=1e-9), (seed, about)
            assert added[1] == pytest.approx(predicted[1], rel=0.1), (seed, about)  # a tensor may lie in two layouts


def draw_problem(seed: int) -> Problem:
    """Nodes of one to four states, tables of one to three nodes, some of whose cells cannot be."""
    draw = Random(seed)
    count = draw.randint(3, 14)
    found = Problem([list(range(draw.randint(1, 4))) for _ in range(count)], [], draw.random(), 10 * draw.random())
    for node, states in enumerate(found.states):
        found.tables.append(Table((node,), {(s,): (draw.random(), draw.randint(1, 1000)) for s in range(len(states))}))
    for _ in range(draw.randint(count - 1, int(1.6 * count))):
        nodes = tuple(draw.sample(range(count), draw.choice([2, 2, 3])))
        places = itertools.product(*(range(len(found.states[node])) for node in nodes))
        cells = {place: (draw.random(), draw.randint(0, 300)) for place in places if draw.random() < 0.97}
        found.tables.append(Table(nodes, cells))
    return found


@pytest.mark.parametrize("first", range(0, 300, 50))
def test_dynamic_finds_what_an_integer_program_finds(first):
    num_solved = 0
    for seed in range(first, first + 50):
        problem = draw_problem(seed)
        capacity, fastest = math.inf, dynamic.Solver(problem).solve()
        if fastest is not None and seed % 3:
            capacity = problem.cost(fastest)[1] * Random(seed).uniform(0.6, 1)
        found, best = dynamic.Solver(problem).solve(capacity), exact.solve(problem, capacity)
        assert (found is None) == (best is None), seed
        if found is not None:
            assert problem.cost(found)[1] <= capacity
            assert problem.cost(found)[0] <= problem.cost(best)[0] * (1 + 1e-6), seed
            num_solved += 1
    assert num_solved >= 25


def test_a_chain_of_many_nodes_is_solved():
    """Each would be other than the one before, and the first would be 0."""
    tables = [Table((n - 1, n), {(a, b): (float(a == b), 0.0) for a in (0, 1) for b in (0, 1)}) for n in range(1, 2000)]
    tables.append(Table((0,), {(0,): (0.0, 0.0), (1,): (1.0, 0.0)}))
    assert dynamic.Solver(Problem([[0, 1]] * 2000, tables)).solve() == [0, 1] * 1000


def test_a_problem_of_too_many_dependencies_is_known_before_it_takes_all_memory():
    pairs = itertools.combinations(range(30), 2)
    problem = Problem([[0, 1]] * 30, [Table(pair, {(0, 1): (1.0, 1.0), (1, 0): (2.0, 1.0)}) for pair in pairs])
    assert dynamic.is_entangled(problem)
    with pytest.raises(dynamic.EntangledError):
        dynamic.Solver(problem).solve()


def test_a_problem_of_too_many_dependencies_is_solved_in_parts_near_the_best():
    problems = [each for each in map(draw_problem, range(30)) if math.isfinite(each.cost([0] * len(each.states))[0])]
    best = [problem.cost(dynamic.Solver(problem).solve())[0] for problem in problems]
    assert sum(bool(dynamic.elimination_order(problem, 16)[1]) for problem in problems) >= 10
    with mock.patch.object(dynamic, "PART_CELLS", 16):
        found = [problem.cost(dynamic.PartSolver(problem).solve())[0] for problem in problems]
    above = [ours / least for ours, least in zip(found, best, strict=True)]
    assert all(1 - 1e-9 <= each <= 1.15 for each in above) and sum(above) / len(above) <= 1.01


def test_equal_layers_far_apart_do_not_keep_a_model_from_being_solved(ranks):
    """Each pair of widths comes back, in another place: as one problem that would have tables of 2^30 cells."""
    options = {"num_ranks": 8, "batch_size": 64, "machine": KNOWN.text(), "most_cells": dynamic.MOST_CELLS}
    [(seconds, said)] = ranks(1).run(search_tasks.seconds_of_widths, seed=0, num_layers=100, num_widths=8, **options)
    assert seconds["dynamic"] <= seconds["recursive"] and not said


def test_biases_are_alike_where_their_layers_are(ranks):
    [[other, down, up, down_again, up_again]] = ranks(1).run(search_tasks.classes_of_biases)
    assert up == up_again != other and down == down_again


def test_what_is_too_entangled_is_searched_in_parts_and_said(ranks):
    options = {"num_ranks": 4, "batch_size": 64, "machine": KNOWN.text(), "most_cells": 16}
    [(seconds, said)] = ranks(1).run(search_tasks.seconds_of_widths, seed=0, num_layers=4, num_widths=8, **options)
    assert seconds["dynamic"] == seconds["recursive"]
    assert said and all("those that are found there may be a little slower" in each for each in said)


@pytest.mark.parametrize("rows", [8, 4096])
def test_two_layers_are_divided_as_the_closed_form_says(rows, ranks):
    """By columns and rows it sends rows x width once, by rows of the batch both kernels: the smaller one is best."""
    [found] = ranks(1).run(
        search_tasks.find_best, name="two_layers", batch_size=rows, num_ranks=4, machine=KNOWN.text()
    )
    if rows == 8:
        assert found["mesh"] == {DATA: 1, MODEL: 4}
        assert found["layouts"]["up/kernel"] == (None, MODEL) and found["layouts"]["down/kernel"] == (MODEL, None)
        # Forward one sum of rows x width; none backward, because no gradient is wanted of the data.
        assert found["collectives"] == [("all_reduce", rows * 64 * 4, "down")]
    else:
        assert found["mesh"] == {DATA: 4, MODEL: 1}
        assert MODEL not in {axis for axes in found["layouts"].values() for axis in axes}


def test_a_gpt_is_divided_as_megatron_divides_it(ranks):
    [found] = ranks(1).run(
        search_tasks.find_best, name="gpt", batch_size=8, num_ranks=2, mesh=(1, 2), machine=KNOWN.text()
    )
    layouts = found["layouts"]
    for number in range(2):
        for part in ("query", "key", "value"):
            assert layouts[f"attention_{number}/{part}/kernel"] == (None, MODEL, None)
        assert layouts[f"attention_{number}/attention_output/kernel"] == (MODEL, None, None)
        assert layouts[f"up_{number}/kernel"] == (None, MODEL)
        assert layouts[f"down_{number}/kernel"] == (MODEL, None)
    blocks = [call for call in found["collectives"] if not call[2].startswith(("logits", "embedding", "compile_loss"))]
    assert len(blocks) == 2 * 4 and {size for _, size, _ in blocks} == {
        8 * 16 * 64 * 4
    }  # Shoeybi et al.: 2 + 2 a layer


@pytest.mark.long
@pytest.mark.parametrize(("name", "search"), [("two_layers", "propagation"), ("gpt", "dynamic")])
def test_what_is_found_trains_as_one_process(name, search, ranks, plain, exactness):
    """The other searches are in `test_found_plans.py`."""
    layout = {"layout": {"up/kernel": (None, "model")}} if search == "propagation" else {}
    options = {"search": search, "mesh": (1, 2), **layout}
    results, [alone] = together(
        ranks(2).begin(search_tasks.search_and_train, name=name, options=options, machine=KNOWN.text()),
        plain.begin(search_tasks.train, name=name),
    )
    require_as_alone(results, alone, exactness)
    for result in results:
        assert result["plan"] == results[0]["plan"] and result["layout"] == results[0]["layout"] != {}


def test_a_model_as_it_is_is_divided_at_its_first_fit(ranks, plain, exactness):
    results, [alone] = together(
        ranks(2).begin(search_tasks.train_inline, name="gpt", mesh=(1, 2), machine=KNOWN.text()),
        plain.begin(search_tasks.train, name="gpt"),
    )
    require_as_alone(results, alone, exactness)
    assert all(result["held"] < 0.7 * result["whole"] for result in results)


def test_what_cannot_be_is_one_sentence_on_every_rank(ranks):
    said = ranks(2).run(search_tasks.refusals)
    assert len(said) == 2 and said[0] == said[1]
    too_small = (
        "keras-par: the model does not fit into 10 KiB on each of 2 ranks: start 128, or give each rank 211 KiB."
    )
    assert said[0] == {
        "memory": too_small,
        "batch": "keras-par: a batch of 7 rows cannot be cut for 2 ranks: give another.",
        "search": "keras-par: search='magic' is unknown, use 'dynamic', 'recursive', 'propagation' or 'exact'.",
        "size": "keras-par: memory='much' is no size: write it as '8GB'.",
        "mesh": "keras-par: mesh=(2,) has not two or three sizes: give ranks by rows and by the other axes.",
        "pattern": "keras-par: pattern 'upp/kernel' matches no variable; nearest are 'up/kernel', 'down/kernel', "
        "'up/bias': correct it.",
        "axis": "keras-par: pattern 'up/kernel' has the axis 'modell': use 'batch', 'model' or 'model_2'.",
        "dims": "keras-par: variable 'up/kernel' cannot lie so: the layout ('model',) has 1 dim(s) and the shape "
        "(64, 256) has 2: change its layout.",
        "machine": "keras-par: there is no machine 'nowhere': give a file, or one of cpu-cluster, gpu-host.",
    }


def test_what_is_said_of_one_layer_is_not_said_of_those_like_it(ranks):
    said = {"up_1/kernel": (MODEL, None), "down_0/kernel": ()}
    options = {"batch_size": 8, "num_ranks": 2, "mesh": (1, 2), "machine": KNOWN.text(), "fixed": said}
    for search in ("dynamic", "propagation"):
        [found] = ranks(1).run(search_tasks.find_best, name="gpt", search=search, **options)
        assert found["layouts"]["up_1/kernel"] == (MODEL, None) and "down_0/kernel" not in found["layouts"]
        assert found["layouts"].get("up_0/kernel") != (MODEL, None)


@pytest.mark.long
def test_the_first_search_on_a_machine_leaves_names_and_weights_as_they_would_be(ranks, plain, tmp_path, exactness):
    """It measures the machine before, which builds models of its own."""
    results, [alone] = together(
        ranks(2).begin(search_tasks.search_unmeasured, folder=str(tmp_path / "wheels")),
        plain.begin(search_tasks.train_unnamed),
    )
    assert (tmp_path / "machine.toml").is_file()
    require_as_alone(results, alone, exactness)


def test_a_model_with_state_stays_whole_beside_one_that_is_divided(ranks):
    results = ranks(2).run(search_tasks.train_two_inline, machine=KNOWN.text())
    assert len(results) == 2
    for result in results:
        assert result["divided"] and result["whole"] and result["told"] == (result["rank"] == 0)


@pytest.mark.long
def test_the_command_writes_a_file_that_the_plan_takes(ranks, tmp_path):
    path, machine = tmp_path / "found.toml", tmp_path / "machine.toml"
    machine.write_text(KNOWN.text())
    common = "tests/search_tasks.py:gpt --ranks 8 --batch-size 16"
    searched = f"{common} --search dynamic --mesh 2x4 --machine {machine}"
    done = run_plan(ranks, f"{searched} --write {path} --json")
    assert done.status == 0, done.errors
    found = json.loads(done.output)
    strategy = parse_strategy(path.read_text(), "found.toml", "found")
    assert strategy.mesh == {"batch": 2, "model": 4} == found["best"]["mesh"]
    assert {entry.pattern: list(entry.axes) for entry in strategy.entries} == found["layout"]
    planned = run_plan(ranks, f"{path} {common} --json")
    assert planned.status == 0, planned.errors
    plan = json.loads(planned.output)
    variables = {row["path"]: row["axes"] for row in plan["variables"]}
    assert variables["up_1/kernel"] == found["layout"][r"up_\d+/kernel"] and variables["up_1/kernel"][1] == "model"
    assert plan["local_bytes"] == found["best"]["variables"]
    told = run_plan(ranks, searched)
    assert "why not" in told.output and "data parallel" in told.output and "attention_1" in told.output


PATHS = [f"block_{i}/{name}" for i in range(4) for name in ("a", "b_2", "c")]


@given(st.dictionaries(st.sampled_from(PATHS), st.booleans()))
def test_patterns_give_each_variable_its_own_layout(divided):
    layouts = {path: (None, "model") if by_columns else ("model", None) for path, by_columns in divided.items()}
    found = entries(layouts, PATHS)
    for path in PATHS:
        fitting = [entry.axes for entry in found if re.fullmatch(entry.pattern, path)]
        assert fitting == ([layouts[path]] if path in layouts else [])


def test_halving_comes_to_the_mesh_that_costs_least():
    tried = []

    def cost(by_rows: int, by_model: int) -> float:
        tried.append((by_rows, by_model))
        return abs(math.log2(by_rows / 4)) + abs(math.log2(by_model / 16))

    assert (4, 16) in halvings(64, cost)
    assert len(set(tried)) == 2 * 6 + 1  # and the one beside the fastest that halving has not come to


def test_halving_looks_beside_where_it_goes_astray():
    seconds = {(3, 1): 2, (1, 3): 1, (6, 1): 9, (3, 2): 1, (2, 3): 3, (1, 6): 2}
    assert (3, 2) in halvings(6, lambda *mesh: seconds[mesh])


def test_meshes_are_all_factorizations_once():
    sizes = [tuple(mesh.values()) for mesh in meshes(12, 3)]
    assert len(set(sizes)) == len(sizes)
    products = itertools.product(range(1, 13), repeat=3)
    wanted = {each for each in products if math.prod(each) == 12 and (each[1] > 1 or each[2] == 1)}
    assert {(*each, 1)[:3] for each in sizes} == wanted
    assert len(meshes(12)) == 6 and {len(mesh) for mesh in meshes(12)} == {2}


@pytest.mark.slow
def test_more_ranks_than_a_dim_has_elements_are_used_by_two_axes(ranks):
    """One row cannot be divided, and no dim has 512 elements."""
    options = {"name": "two_layers", "batch_size": 1, "num_ranks": 512, "machine": KNOWN.text(), "memory": 2000}
    with pytest.raises(RankError, match=r"fits into 1\.95 KiB"):
        ranks(1).run(search_tasks.find_best, **options)
    [found] = ranks(1).run(search_tasks.find_best, num_axes=3, **options)
    assert {axis for axes in found["layouts"].values() for axis in axes} >= {MODEL, MODEL_2}
    assert found["bytes"] <= 2000


def test_sizes_are_shown_in_plain_digits():
    sizes = {1536: "1.5 KiB", 1000 * 2**10: "1,000 KiB", 1023.9 * 2**20: "1,024 MiB", 2**40: "1 TiB", 4: "4 B"}
    assert {number: size(number) for number in sizes} == sizes


def test_machines_are_read_as_they_are_written(tmp_path):
    path = tmp_path / "machine.toml"
    path.write_text(KNOWN.text())
    assert read_machine(path) == KNOWN
    for shipped in SHIPPED.glob("*.toml"):
        assert machine_of(shipped.stem).name == shipped.stem
        assert "data sheets" in shipped.read_text()
    content = tomllib.loads(KNOWN.text())
    del content["flops"]
    path.write_text("\n".join(f"{key} = {json.dumps(value)}" for key, value in content.items() if key != "links"))
    with pytest.raises(ValueError, match="lacks 'flops'"):
        read_machine(path)
    path.write_text(KNOWN.text().replace("cached_bytes = 0\ncached_bytes_per_second = 1", "cached_bytes = 1e6"))
    with pytest.raises(ValueError, match="lacks 'cached_bytes_per_second'"):
        read_machine(path)
    for wrong in ("flops = -1.0", 'flops = "fast"', "flops = true", "flops = inf", "flops = nan", "flops = 1e99"):
        path.write_text(KNOWN.text().replace("flops = 1e+09", wrong))
        with pytest.raises(ValueError, match="says flops = "):
            read_machine(path)
    for content, said in (
        (b"\xff", "no text in UTF-8"),
        (b"a=" + b"[" * 5000, "nested too deeply"),
        (b"links=1", "links"),
    ):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=f"keras-par: .* is no machine: .*{said}"):
            read_machine(path)
    path.write_text(KNOWN.text().replace("bytes_per_second = 1e+09", "bytes_per_second = 0"))
    with pytest.raises(ValueError, match=r"above 0 of \[links\.all_reduce"):
        read_machine(path)


def test_a_strategy_file_is_read_as_it_is_written():
    for file in sorted((REPOSITORY / "strategies").glob("*.toml")):
        strategy = parse_strategy(file.read_text(), file.name, file.stem)
        assert parse_strategy(strategy_text(strategy), file.name, file.stem) == strategy


def test_a_typical_machine_has_the_medians_of_several_measurements():
    fast, slow = replace(KNOWN, flops=9e9, exposed=0.8), replace(KNOWN, bytes_per_second=2e9, exposed=0.2)
    links = {kind: {"host": Link(3e-5, 7e9, 1e-6)} for kind in KNOWN.links}
    lucky = replace(KNOWN, name="lucky", links=links, flops=8e9)
    of_host = {kind: {"host": reaches["host"]} for kind, reaches in KNOWN.links.items()}
    found = typical([replace(fast, links=of_host), replace(slow, links=of_host), lucky])
    assert found == replace(KNOWN, links=of_host, flops=8e9, exposed=0.2)


def test_the_exposed_part_of_the_shorter_time_is_added_to_the_longer_one():
    for exposed, seconds in ((0.0, 2.0), (0.5, 2.25), (1.0, 2.5)):
        machine = replace(KNOWN, flops=1.0, bytes_per_second=2.0, kernel_seconds=0.0, exposed=exposed)
        assert machine.compute_seconds(2, 1, 1) == machine.compute_seconds(0.5, 4, 1) == seconds


def test_what_an_operation_finds_in_caches_takes_less_time():
    machine = replace(KNOWN, bytes_per_second=2.0, cached_bytes=4.0, cached_bytes_per_second=8.0)
    assert [machine.memory_seconds(*each) for each in ((4, 1), (8, 1), (8, 2), (8, 0))] == [0.5, 2.5, 1.0, 2.5]
    assert KNOWN.memory_seconds(8e9, 1) == 8e9 / KNOWN.bytes_per_second


@pytest.mark.parametrize("has_gradient", [True, False])
def test_a_function_costs_what_products_compute_meanwhile(has_gradient):
    """On each rank of two that divide its 4 x 6 elements; a ReLU computes nothing to speak of."""
    forward, backward = FLOPS_PER_ELEMENT["nn.gelu"]
    tensors = [Tensor((TRACED_ROWS, 6), "float32", 4, has_gradient) for _ in range(2)]
    layouts, outcome = {0: (None, "model")}, Outcome(((None, "model"),))
    gelu, relu = (
        work_of(Operation(name, "", (0,), (1,)), tensors, layouts, outcome, {"model": 2}, 4)
        for name in ("nn.gelu", "nn.relu")
    )
    assert (gelu.flops, gelu.forward_flops) == ((forward + backward * has_gradient) * 4 * 3, forward * 4 * 3)
    assert (relu.flops, relu.forward_flops) == (0, 0) and relu.num_bytes == gelu.num_bytes


def test_a_loss_costs_what_its_largest_tensor_has_to_do():
    """A sparse cross-entropy makes one number of each row of logits."""
    tensors = [Tensor((TRACED_ROWS, 50), "float32", 4, True), Tensor((TRACED_ROWS,), "float32", 4, True)]
    loss = Operation("nn.sparse_categorical_crossentropy", "", (0,), (1,))
    assert work_of(loss, tensors, {}, Outcome(((None,),)), {}, 4).flops == sum(FLOPS_PER_ELEMENT[loss.name]) * 4 * 50


def test_functions_that_costs_count_have_rules(ranks):
    """Others would never be met."""
    assert ranks(1).run(search_tasks.names_without_rule) == [[]]


def test_calibrate_needs_two_ranks(tmp_path):
    command = [str(scripts() / "keras-par"), "calibrate", "-np", "1", "--write", str(tmp_path / "machine.toml")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stderr.count("\n")) == (
        2,
        1,
    ) and "must be a whole number of at least 2" in done.stderr


@pytest.mark.slow
def test_calibrate_measures_what_costs_are_made_of(tmp_path):
    path = tmp_path / "machine.toml"
    command = [str(scripts() / "keras-par"), "calibrate", "-np", "2", "--write", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    found = read_machine(path)
    assert path.read_text() in done.stdout
    assert found.ranks_per_host == 2 and 0 < found.memory_gb < 1e4
    assert 1e8 < found.flops < 1e13 and 1e8 < found.bytes_per_second < 1e12
    assert found.bytes_per_second <= found.cached_bytes_per_second < 1e12 and 0 <= found.cached_bytes < 1e9
    assert 1e-8 < found.kernel_seconds < 1e-3 and 1e-5 < found.step_seconds < 1
    assert set(found.links) == {"all_reduce", "all_gather", "reduce_scatter"}
    for kind, links in found.links.items():
        assert all(1e-7 <= link.seconds < 0.1 and 1e6 < link.bytes_per_second < 1e12 for link in links.values()), kind
        small, large = (found.send_seconds(kind, size, 2, "host") for size in (1 << 10, 1 << 24))
        assert small < large
