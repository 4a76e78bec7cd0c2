"""Counts what a step sends, and checks what a reducer makes of gradients."""

import numpy as np
import pytest

from tests import tasks


def test_state_is_sent_in_messages_of_which_copies_fit_into_memory(ranks):
    for sent in ranks(2).run(tasks.broadcast_state):
        assert sent == {"bytes": [2**24, 2**24, 2**22], "values": [float(i) for i in range(9)]}


def test_an_object_of_one_rank_comes_to_all(ranks):
    results = ranks(2).run(tasks.broadcast_objects)
    assert len(results) == 2
    for of_first, of_last, refused in results:
        for root, received in enumerate((of_first, of_last)):
            assert received.pop("rows").tolist() == [root, root + 1, root + 2]
            assert received == {"units": 8, "nothing": None, root: ("a", 1 + 2j)}
        assert "cannot pickle the object of rank 1" in refused[0]
        assert "cannot pickle the object of rank 0 (KeyError: 'one line" in refused[1] and "\n" not in refused[1]
        assert ["but there are 2 rank(s)" in each for each in refused[2:]] == [True, True]
        assert refused == results[0][2]


def test_a_step_costs_one_all_reduce_of_the_gradients(ranks):
    for counted in ranks(2).run(tasks.count_collectives, name="adam"):
        assert set(counted["step"]) == {("all_reduce", counted["num_parameters"] * 4)}
        assert counted["names"] == {"kp.gradients.0.0"}  # a second one within a step would have another name


@pytest.mark.parametrize(("name", "num_updates"), [("adam", 20), ("accumulation", 6)])
def test_an_update_costs_one_all_reduce_and_a_micro_batch_none(name, num_updates, ranks):
    for counted in ranks(2).run(tasks.count_collectives, name=name, eagerly=True):
        assert counted["iterations"] == 20
        assert counted["step"] == [("all_reduce", counted["num_parameters"] * 4)] * num_updates


def test_compression_halves_the_bytes(ranks):
    for counted in ranks(2).run(tasks.count_collectives, name="adam", compression="fp16"):
        assert set(counted["step"]) == {("all_reduce", counted["num_parameters"] * 2)}


def test_batch_normalization_costs_one_small_reduce_forward_and_one_backward(ranks):
    units = 16
    for counted in ranks(2).run(tasks.count_collectives, name="batchnorm"):
        forward, backward, gradients = (2 * units + 1) * 8, 2 * units * 4, counted["num_parameters"] * 4
        assert counted["step"][:3] == [("all_reduce", size) for size in (forward, backward, gradients)]
        assert set(counted["step"]) == set(counted["step"][:3])


def test_batch_normalization_of_a_rank_s_rows_costs_nothing(ranks):
    for counted in ranks(2).run(tasks.count_collectives, name="batchnorm", sync_batch_norm=False):
        assert set(counted["step"]) == {("all_reduce", counted["num_parameters"] * 4)}


@pytest.mark.long
def test_eager_collectives_of_different_names_are_never_joined(ranks):
    for sums in ranks(3).run(tasks.reduce_in_another_order):
        assert sums == {"ones": 3, "tens": 30}


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("mean", [True, False])
@pytest.mark.parametrize("compression", [None, "fp16", "bf16"])
def test_a_reducer_sums_or_averages_every_kind_of_gradient(compression, mean, size, ranks):
    total = sum(range(1, size + 1)) / (size if mean else 1)
    slices = np.zeros((6, 4))
    for rank in range(size):
        slices[rank] += (rank + 1) / (size if mean else 1)
        slices[3] += (rank + 1) / (size if mean else 1)
    for result in ranks(size).run(tasks.reduce_by_hand, mean=mean, compression=compression):
        tolerance = 0 if compression is None and (not mean or size == 2) else 1e-2
        np.testing.assert_allclose(result[0], np.full((3, 5), total), rtol=tolerance)
        assert result[1] is None
        np.testing.assert_allclose(result[2], np.full(7, total), rtol=tolerance)
        assert result[2].dtype == np.float64
        np.testing.assert_allclose(result[3], slices, rtol=1e-6)
        np.testing.assert_allclose(result[4], total, rtol=tolerance)
