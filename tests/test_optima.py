"""The search finds the divisions that are known to be the best, without being told; what they cost is a formula.

Each test says why its optimum is one. Machines are made so that little else than that reason counts.
"""

import math

import pytest

from keras_par.plan.machine import Link, Machine
from keras_par.searching.known_machines import machine_of
from tests import optima_tasks
from tests.test_search import KNOWN

WIDTH, ITEM = 64, 4


def sending(flops: float) -> Machine:
    """Its time is that of products and of bytes that are sent; gathers are slow, so that sums are better."""
    speeds = {"all_reduce": 1e9, "all_gather": 4e8, "reduce_scatter": 4e8}
    links = {kind: dict.fromkeys(("host", "network"), Link(0.0, speed, 0.0)) for kind, speed in speeds.items()}
    return Machine("sending", flops, 1e18, 1e18, 0.0, 0.0, 64, 64, 1.0, links)


def find(ranks, name: str, batch_sizes: list[int], num_ranks: int, machine: Machine, **options) -> list[dict]:
    task = {"batch_sizes": batch_sizes, "num_ranks": num_ranks, "machine": machine.text(), **options}
    [found] = ranks(1).run(optima_tasks.find_best, name=name, **task)
    assert len(found) == len(batch_sizes)
    return found


def axes_of(found: dict, part: str = "") -> set:
    """The axes that divide variables of this name."""
    return {axis for path, axes in found["layouts"].items() if part in path for axis in axes} - {None}


# The bytes that cross a link for each byte of a sum over n ranks.
RING = {ranks: 2 * (ranks - 1) / ranks for ranks in (1, 2, 4)}


def mlp_bytes(num_layers: int, batch_size: int, by_rows: int, by_model: int) -> tuple[list, int, float]:
    """Alpa's closed forms: the sums of activations, the bytes of sums of gradients, and the bytes over a link.

    By columns and rows in turns n layers have n / 2 sums forward, and one fewer backward, because nobody wants a
    gradient of the data: n - 1 of b x h. Rows of the batch cost a sum of n x h x h.
    """
    rows = batch_size // by_rows * WIDTH * ITEM
    weights = num_layers * WIDTH * WIDTH * ITEM // by_model
    sums = [("all_reduce", rows)] * (num_layers - 1) if by_model > 1 else []
    crossing = RING[by_model] * rows * len(sums) + RING[by_rows] * weights
    return sums, weights if by_rows > 1 else 0, crossing


@pytest.mark.parametrize("named", [True, False], ids=["named", "as Keras names them"])
@pytest.mark.parametrize("num_layers", [2, 4, 6])
@pytest.mark.parametrize("num_ranks", [2, 4])
def test_an_mlp_is_divided_as_the_closed_forms_say(num_ranks, num_layers, named, ranks):
    """Columns and rows win below n x h / (n - 1) rows, rows of the batch above; on 4 ranks both do between half and
    twice of that."""
    even = num_layers * WIDTH / (num_layers - 1)
    batch_sizes = [4 * round(ratio * even / 4) for ratio in (0.25, 0.4, 0.6, 0.8, 1.2, 1.7, 2.3, 4.0)]
    options = {"num_layers": num_layers, "width": WIDTH, "named": named}
    meshes = [(by_rows, num_ranks // by_rows) for by_rows in (1, 2, 4) if num_ranks % by_rows == 0]
    chosen = []
    for batch_size, found in zip(
        batch_sizes, find(ranks, "mlp", batch_sizes, num_ranks, sending(1e9), **options), strict=True
    ):
        best = min(meshes, key=lambda mesh: mlp_bytes(num_layers, batch_size, *mesh)[2])
        sums, gradient_bytes, _ = mlp_bytes(num_layers, batch_size, *best)
        assert (found["mesh"], found["sent"], found["gradient_bytes"]) == (best, sums, gradient_bytes), batch_size
        assert set(found["layouts"].values()) == ({(None, "model"), ("model", None)} if best[1] > 1 else set())
        chosen.append(best)
    assert set(chosen) == set(meshes)


DENSE = {"alexnet": ("dense/", "dense_1/", "dense_2/"), "vgg": ("fc1", "fc2", "predictions")}


@pytest.mark.parametrize("name", DENSE)
def test_one_weird_trick(name, ranks):
    """Convolutions have the work and large activations, dense layers the weights: where sending takes longer than
    computing, only the latter are divided by `model`. Rows of convolutions stay over `batch`, which this library's
    layouts cannot change from layer to layer."""
    [found] = find(ranks, name, [128], 8, sending(1e13), mesh=(2, 4))
    assert axes_of(found) == {"model"} and axes_of(found, "conv") == set()
    kernels = [next(axes for path, axes in found["layouts"].items() if f"{part}" in path) for part in DENSE[name]]
    assert kernels == [(None, "model"), ("model", None), (None, "model")]
    if name == "alexnet":  # backward the input of the first columns, forward rows, backward the next columns
        assert found["sent"][:3] == [("all_reduce", 64 * size * ITEM) for size in (6 * 6 * 256, 4096, 4096)]
        assert all(size <= 2 * 64 * ITEM for _, size in found["sent"][3:])  # of the loss: two numbers a row


@pytest.mark.parametrize(("name", "flops", "mesh"), [("alexnet", 3.5e12, (2, 4)), ("vgg", 1e13, (4, 2))])
def test_one_weird_trick_on_the_mesh_of_choice(name, flops, mesh, ranks):
    """The more work the convolutions have, the more ranks have rows of their own."""
    [found] = find(ranks, name, [128], 8, sending(flops))
    assert found["mesh"] == mesh and axes_of(found, "conv") == set()
    assert {axes_of(found, part) == {"model"} for part in DENSE[name]} == {True}


def test_a_vgg_has_rows_on_all_ranks_where_computing_takes_longest(ranks):
    """Who repeats the convolutions loses more than sums of gradients cost, and their channels are more to send."""
    [found] = find(ranks, "vgg", [128], 8, sending(3e11))
    assert found["mesh"] == (8, 1) and found["layouts"] == {}


def test_tables_of_a_recommender_are_divided_by_words(ranks):
    """They fit no rank. A sum of the rows that are taken is a message; columns are gathered and put in order besides.
    Stored over `batch` a whole table would be gathered. The dense part is too small to be divided."""
    [found] = find(ranks, "recommender", [4096], 8, machine_of("gpu-host"), memory=8e9, width=64)
    assert found["whole_bytes"] > 8e9 >= found["bytes"]
    tables = {f"of_{name}/embeddings": ("model", None) for name in ("country", "user", "item")}
    assert found["mesh"] == (1, 8) and found["layouts"] == tables
    assert found["sent"] == [("all_reduce", 4096 * 64 * ITEM)] * 3


@pytest.mark.parametrize("mesh", [(1, 4), (2, 4), None])
def test_experts_of_a_mixtral_are_divided_by_expert(mesh, ranks):
    """All experts see all texts, so that what they make is summed over experts: once forward, where columns and rows
    within each expert would be a sum for each of them."""
    num_ranks = 8 if mesh is None else math.prod(mesh)
    [found] = find(ranks, "mixtral", [8], num_ranks, KNOWN, mesh=mesh, input_shape=(8, 8))
    assert found["mesh"][1] > 1
    experts = [axes for path, axes in found["layouts"].items() if "/experts/" in path]
    assert len(experts) == 3 * 2 and {(axes[0], "model" in axes[1:]) for axes in experts} == {("model", False)}


def test_a_resnet_is_trained_data_parallel(ranks):
    """Its convolutions have much work for few weights."""
    [found] = find(ranks, "resnet", [256], 8, machine_of("gpu-host"))
    assert found["mesh"] == (8, 1) and found["layouts"] == {}
    assert found["gradient_bytes"] == 25_583_592 * ITEM  # its trainable parameters


def test_where_only_storage_over_the_batch_fits_that_is_found(ranks):
    """Many rows: whoever holds all of them has no memory left, so that rows are divided by all ranks. The weights fit
    only in parts then."""
    options = {"num_layers": 4, "width": 1024}
    weights = 4 * 1024 * 1024 * ITEM
    rows = 4096 * 1024 * ITEM  # of one layer, of all ranks
    [free] = find(ranks, "mlp", [4096], 4, sending(1e12), memory=1e12, mesh=(4, 1), **options)
    assert free["layouts"] == {} and free["bytes"] == free["whole_bytes"] > 3 * weights + rows
    for memory, zero, layouts in ((4 * weights, 0, {("batch", None)}), (3 * weights, 3, set())):  # a layout, a stage
        [found] = find(ranks, "mlp", [4096], 4, sending(1e12), memory=memory, mesh=(4, 1), **options)
        assert found["bytes"] <= memory
        assert found["zero"] == zero and set(found["layouts"].values()) == layouts
    [found] = find(ranks, "mlp", [4096], 4, sending(1e12), memory=memory, **options)
    assert found["mesh"] == (4, 1) and found["zero"] == 3
    assert all(num_bytes > memory for num_bytes in found["others"].values())


@pytest.mark.parametrize("machine", [KNOWN, machine_of("gpu-host")], ids=lambda machine: machine.name)
@pytest.mark.parametrize(("name", "kind"), [("llama", "Llama"), ("gemma 2", "Gemma"), ("mistral", "Mistral")])
def test_what_is_found_is_no_slower_than_layouts_that_people_made(name, kind, machine, ranks):
    """The maps of the catalogue and of KerasHub are points of what is searched."""
    [rows] = ranks(1).run(optima_tasks.beside_maps, name=name, kind=kind, machine=machine.text())
    *found, best = rows
    maps = [row for row in found if row["who"] != "search"]
    assert {row["who"] for row in maps} == {"catalogue", "KerasHub"} - ({"KerasHub"} if kind == "Mistral" else set())
    for row in maps:
        [searched] = [each for each in found if each["who"] == "search" and each["mesh"] == row["mesh"]]
        assert best["ms"] <= searched["ms"] <= row["ms"] * (1 + 1e-9), row
