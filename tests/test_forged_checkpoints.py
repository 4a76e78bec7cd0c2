"""Checkpoints that are damaged or forged at random are the package's own error, and nothing elsewhere is touched."""

import pytest

from tests.forged_checkpoints import Forger

SEEDS = {"some": range(200), "many": range(200, 20_000)}


@pytest.mark.filterwarnings("ignore:__array__")  # of TensorFlow, which NumPy asks
@pytest.mark.parametrize("seeds", ["some", pytest.param("many", marks=pytest.mark.slow)])
def test_what_is_forged_is_one_sentence_and_touches_nothing(seeds, tmp_path):
    forger = Forger(tmp_path)
    for seed in SEEDS[seeds]:
        try:
            forger.input(seed)
        except Exception as error:
            pytest.fail(f"seed {seed}: {type(error).__name__}: {error}")
