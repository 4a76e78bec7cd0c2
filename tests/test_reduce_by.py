"""Which way sums take can be chosen and seen; the result is one process's, whichever it is."""

import numpy as np
import pytest

from keras_par.plan.strategy_file import parse_strategy
from tests import reduce_by_tasks as tasks
from tests.jobs import start, write_script
from tests.ranks.pool import Failure, together

WAYS = ["auto", "horovod", "shared_memory", "horovod"]
ROUTES = ["shared_memory", "engine", "shared_memory", "engine"]


def test_both_ways_train_side_by_side_as_one_process(ranks, plain):
    [alone], results = together(plain.begin(tasks.alone, epochs=3), ranks(2).begin(tasks.train, ways=WAYS, epochs=3))
    for result in results:
        assert result["size"] == 2
        assert [set(routes) for routes in result["routes"]] == [{route} for route in ROUTES]
        for found in result["weights"]:
            for own, expected in zip(found, alone, strict=True):
                np.testing.assert_allclose(own, expected, rtol=1e-6, atol=1e-7)


def test_describe_says_the_way(ranks):
    for result in ranks(2).run(tasks.train, ways=WAYS[:2], epochs=1):
        shared, horovod = result["texts"]
        assert "Gradients are summed through the shared memory of this host (reduce_by='auto')." in shared
        assert f"Gradients are summed by {ranks(2).engine} (reduce_by='horovod')." in horovod
        assert "all_reduce  shared memory" in shared and "all_reduce  engine" in horovod
    for result in ranks(3).run(tasks.train, ways=["auto"], epochs=1):
        assert "no shared memory, because KERAS_PAR_SHARED_MEMORY=0 is set on rank 2" in " ".join(
            result["texts"][0].split()
        )


@pytest.mark.long
@pytest.mark.parametrize("mesh", [(2, 1), (1, 2)])
def test_a_mesh_over_all_ranks_sums_the_way_that_is_chosen(mesh, ranks):
    for result in ranks(2).run(tasks.train, ways=["shared_memory", "horovod"], epochs=2, mesh=mesh):
        shared, horovod = result["routes"]
        assert len(shared) == len(horovod) and set(horovod) == {"engine"}
        assert "shared_memory" in shared
        for one, other in zip(*result["weights"], strict=True):
            np.testing.assert_array_equal(one, other)  # two numbers add up alike, whoever adds them


def test_groups_of_a_mesh_go_the_way_that_is_chosen(ranks):
    """Sums over two ranks each, gathers and reduce-scatters; only eager collectives are Horovod's."""
    for result in ranks(4).run(tasks.train, ways=["shared_memory", "horovod"], epochs=2, mesh=(2, 2)):
        assert result["size"] == 4
        shared, horovod = result["routes"]
        assert set(shared) == {"shared_memory"} and set(horovod) == {"engine"} and len(shared) == len(horovod) > 4
        assert "Sums over all ranks go through the shared memory of this host (reduce_by='shared_memory')." in (
            " ".join(result["texts"][0].split())
        )
        for one, other in zip(*result["weights"], strict=True):
            np.testing.assert_array_equal(one, other)


def test_all_ranks_make_the_groups_of_a_mesh_that_nothing_asked_for_before(tmp_path):
    """As they say which way sums go, in a program that begins with it."""
    program = """
        import keras, numpy as np
        import keras_par as kp

        kp.init()
        mesh = keras.distribution.DeviceMesh((1, 2), ["batch", "model"])
        with kp.ModelParallel(layout_map=keras.distribution.LayoutMap(mesh), batch_dim_name="batch").scope():
            model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
            model.compile("sgd", "mse")
        model.train_on_batch(np.ones((4, 3)), np.ones((4, 2)))
        print(f"trained on {kp.size()}")
    """
    job = start("mpirun", 2, write_script(tmp_path, program))
    assert job.find("trained on 2") == ["trained on 2"] * 2, job.output


@pytest.mark.parametrize(("compression", "tolerance"), [("fp16", 1e-3), ("bf16", 1e-2)])
def test_compressed_gradients_go_through_shared_memory(compression, tolerance, ranks, plain):
    work = ranks(2).begin(tasks.train, ways=["shared_memory"], epochs=2, compression=compression)
    [alone], results = together(plain.begin(tasks.alone, epochs=2), work)
    for result in results:
        assert [set(routes) for routes in result["routes"]] == [{"shared_memory"}]
        for own, expected in zip(result["weights"][0], alone, strict=True):
            np.testing.assert_allclose(own, expected, atol=tolerance)
            assert expected.size < 3 or not np.array_equal(own, expected)


@pytest.mark.parametrize(
    ("which", "size", "sentence"),
    [
        ("unknown", 2, "reduce_by='mpi' is unknown, use 'auto', 'engine', 'horovod' or 'shared_memory'."),
        ("impossible", 3, "reduce_by='shared_memory' cannot be, because KERAS_PAR_SHARED_MEMORY=0 is set on rank 2: "),
        ("different", 2, '"strategy\'s reduce_by" is auto on rank 0 but horovod on rank 1'),
    ],
)
def test_what_cannot_be_is_one_sentence_on_all_ranks(which, size, sentence, ranks):
    results = ranks(size).attempt(tasks.misuse, which=which)
    assert len(results) == size and all(isinstance(result, Failure) for result in results), results
    assert all(result.message.startswith("keras-par: ") for result in results)
    assert sentence.replace('"', "'") in results[0].message
    assert len({result.message for result in results}) == 1


def test_what_is_ignored_warns(ranks):
    for found in ranks(2).run(tasks.warned):
        [warning] = found
        assert warning.startswith("keras-par: reduce_by='shared_memory' is ignored for 'sequential")


def test_a_strategy_file_says_the_way():
    assert parse_strategy('[options]\nreduce_by = "horovod"\n', "x.toml", "x").options == {"reduce_by": "horovod"}
    with pytest.raises(ValueError, match=r"x.toml, line 2: reduce_by cannot be 'horovode', the nearest is 'horovod'"):
        parse_strategy('[options]\nreduce_by = "horovode"\n', "x.toml", "x")
