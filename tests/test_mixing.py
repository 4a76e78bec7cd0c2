"""A step that pairs rows of a batch is told of once, and one that does not is not."""

import pytest

from tests import mixing_tasks

SAID = "each rank its own, so that they meet other rows than in one process"


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("kind", mixing_tasks.PAIRS)
def test_rows_that_are_paired_are_told_of_once(kind, static, ranks):
    first, second = ranks(2).run(mixing_tasks.pairing, kind=kind, static=static)
    assert second == []
    [said] = [message for message in first if SAID in message]
    assert "(mixing_tasks.py:" in said or kind == "in a branch", said


@pytest.mark.parametrize("kind", mixing_tasks.HARMLESS)
def test_what_only_looks_like_it_is_not(kind, ranks):
    for messages in ranks(2).run(mixing_tasks.pairing, kind=kind, static=False):
        assert not any(SAID in message for message in messages), messages


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.long] * (kind not in ("MixUp",))) for kind in mixing_tasks.LAYERS]
)
def test_layers_of_keras_that_pair_rows_are_told_of_and_no_others(kind, ranks):
    first, _ = ranks(2).run(mixing_tasks.layer, kind=kind)
    assert any(SAID in message for message in first) == mixing_tasks.LAYERS[kind][0], first
