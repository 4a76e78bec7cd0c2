"""Every program of a training step keeps one contract, and a broken one is found out."""

import pytest

from tests import program_contract
from tests.ranks.pool import RankError, together

pytestmark = pytest.mark.grappler  # which merges, moves and leaves out operations
BROKEN = {
    "twice": "gradients not reduced once",
    "silent": "other logs",
    "evaluating": "another evaluation",
}


def looked_at(kind: str, ranks, plain) -> set[str]:
    [twin], results = together(
        plain.begin(program_contract.train, kind=kind, distributed=False),
        ranks(2).begin(program_contract.train, kind=kind, distributed=True),
    )
    assert len(results) == 2
    return program_contract.breaches(results, twin)


@pytest.mark.parametrize("kind", ["direct", "split", "written"])
def test_the_contract_is_kept(kind, ranks, plain):
    assert looked_at(kind, ranks, plain) == set()


@pytest.mark.parametrize("kind", BROKEN)
def test_a_breach_is_found(kind, ranks, plain):
    assert BROKEN[kind] in looked_at(kind, ranks, plain)


def test_training_stops_where_a_program_reduces_nothing(ranks):
    with pytest.raises(RankError, match="the ranks' weights have parted"):
        ranks(2).run(program_contract.train, kind="alone", distributed=True)
