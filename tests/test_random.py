"""Random numbers: dropout, noise and augmentation are one process's, and what cannot be is said."""

import random

import numpy as np
import pytest

from keras_par.keras_patches.rows.random_rows import seek, stream
from tests import input_kinds, random_tasks
from tests.compare import log_distance, relative_distance
from tests.random_cases import RANDOM_CASES
from tests.ranks.pool import together

QUICK_ON_4 = ("fewer-rows-than-ranks", "dropout-static", "adversarial")


def runs() -> list:
    assert set(QUICK_ON_4) <= set(RANDOM_CASES)
    return [(2, name) for name in RANDOM_CASES] + [
        pytest.param(4, name, marks=[pytest.mark.slow] * (name not in QUICK_ON_4)) for name in RANDOM_CASES
    ]


@pytest.mark.parametrize(("size", "name"), runs())
def test_ranks_end_where_one_process_ends_with_its_random_numbers(name, size, ranks, plain, exactness):
    [twin], results = together(
        plain.begin(random_tasks.train, name=name, distributed=False),
        ranks(size).begin(random_tasks.train, name=name, distributed=True),
    )
    assert len(results) == size
    for result in results:
        exactness(relative_distance(result["weights"], twin["weights"]), RANDOM_CASES[name].tolerance)
        assert result["seeds"] == twin["seeds"]
        assert name.startswith("adversarial") or log_distance(result["logs"], twin["logs"]) < 2e-5
    for own, first in zip(results[1]["weights"], results[0]["weights"], strict=True):
        np.testing.assert_array_equal(own, first)


def test_rows_that_only_their_rank_knows_have_their_part_of_the_draws(ranks, plain, exactness):
    [twin], results = together(
        plain.begin(random_tasks.train_on_shards, distributed=False),
        ranks(2).begin(random_tasks.train_on_shards, distributed=True),
    )
    assert len(results) == 2
    for weights in results:
        exactness(relative_distance(weights, twin), 1e-6)


@pytest.mark.long
@pytest.mark.parametrize("which", random_tasks.SHUFFLED)
def test_generators_stand_after_fit_where_they_stand_in_one_process(which, ranks, plain, exactness):
    [twin], results = together(
        plain.begin(random_tasks.after_fit, which=which, distributed=False),
        ranks(2).begin(random_tasks.after_fit, which=which, distributed=True),
    )
    assert len(results) == 2
    for result in results:
        exactness(relative_distance(result.pop("weights"), twin["weights"]), 1e-6)
        assert result == {name: value for name, value in twin.items() if name != "weights"}


def test_unseeded_generators_begin_alike_unless_that_is_not_wanted(ranks):
    first, second = ranks(2).run(random_tasks.share_seeds, how="shared")
    assert first["numbers"] == second["numbers"] and None not in first["numbers"]
    assert len(first["messages"]) == 1 and not second["messages"]
    assert "(Python, NumPy, torch, TensorFlow)" in first["messages"][0]
    first, second = ranks(2).run(random_tasks.share_seeds, how="own")
    assert not set(first["numbers"][:3]) & set(second["numbers"][:3])
    assert first["messages"] == second["messages"] == []


SENTENCES = {
    "batchnorm": None,
    "unsynchronized": "sync_batch_norm=False lets 1 BatchNormalization layer(s) of model",
    "loop": "' normalizes each rank's rows by themselves, as ranks cannot talk within a loop",
    "normalizing function": "' normalizes each rank's rows by themselves, as ranks cannot talk within a loop",
    "compression": "compression='bf16' rounds gradients to 8 bits",
    "sparse": None,
    "eager": "Adam squares gradients of looked-up rows one by one, and run_eagerly=True hides",
    "function": "a tf.function that the step calls looks up rows",
    "constant": "random numbers of shape [16, 16] in the step are the same on all ranks",
    "order": "random numbers for several dims of rows, for the order of rows",
    "unknown length": "at its end one process counts one step too many",
    "nothing": None,
}


@pytest.mark.long
@pytest.mark.parametrize("which", SENTENCES)
def test_what_is_not_as_in_one_process_is_said_once(which, ranks):
    first, second = ranks(2).run(random_tasks.unlike_sentences, which=which)
    wanted = SENTENCES[which]
    assert second == [] and len(first) == (wanted is not None), first
    assert wanted is None or wanted in first[0]


@pytest.mark.parametrize(
    ("axes", "own", "said"),
    [
        ((None, "model"), False, None),
        (("model", None), False, None),
        ((None, "model"), True, "because the training step takes it whole"),
        (("batch", None), False, "because the table is divided along the batch axis"),
    ],
)
def test_tables_whose_equal_rows_are_added_before_they_are_squared_are_told_of(axes, own, said, ranks):
    first, second = ranks(2).run(random_tasks.table_sentences, axes=axes, own=own)
    assert second == [] and len(first) == (said is not None), first
    assert said is None or said in first[0]


def test_batch_normalization_sees_all_rows_beside_dropout(ranks, plain, exactness):
    [twin], results = together(
        plain.begin(random_tasks.normalized, distributed=False),
        ranks(2).begin(random_tasks.normalized, distributed=True),
    )
    for result in results:
        exactness(relative_distance(result["weights"], twin["weights"]), 1e-6)


def test_what_predict_draws_is_what_one_process_draws(ranks, plain):
    [twin], results = together(
        plain.begin(random_tasks.predictions, distributed=False),
        ranks(2).begin(random_tasks.predictions, distributed=True),
    )
    for result in results:
        np.testing.assert_allclose(result["first"], twin["first"], rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(result["second"], twin["second"], rtol=1e-6, atol=1e-6)


@pytest.mark.slow
def test_texts_that_are_drawn_are_those_of_one_process(ranks, plain, exactness):
    [twin] = plain.run(random_tasks.generated, distributed=False)
    assert twin["texts"][0] != twin["texts"][1]
    results = ranks(2).run(random_tasks.generated, distributed=True)
    assert len(results) == 2
    for result in results:
        exactness(relative_distance(result["weights"], twin["weights"]), 1e-6)
        assert result["texts"] == twin["texts"]


@pytest.mark.parametrize(
    ("bits", "rejects", "first", "found"),
    [
        (32, False, 10, (2, 2)),
        (16, False, 7, (1, 3)),
        (64, False, 7, (3, 1)),
        (32, True, 9, (512, 1)),
        (64, True, 3, (128, 1)),
    ],
)
def test_where_an_element_lies_in_a_stream_of_numbers(bits, rejects, first, found):
    assert seek(first, stream(bits, rejects)) == found


@pytest.mark.parametrize("marked", [False, True])
@pytest.mark.parametrize("how", ["global", "own", "sampler"])
def test_a_data_loader_deals_each_row_once_though_generators_stand_apart(how, marked, ranks):
    for counts, messages in ranks(2).run(input_kinds.unlike_loaders, how=how, marked=marked):
        assert set(counts) == {2.0}
        assert not any("on rank 0" in message for message in messages), messages


def test_a_generator_that_is_imported_late_begins_alike_on_all_ranks(ranks, tmp_path):
    generator = random.Random(5)
    expected = [generator.random(), generator.random(), True]
    assert ranks(2).run(random_tasks.seeded_late, folder=str(tmp_path)) == [expected, expected]
