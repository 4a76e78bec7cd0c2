"""Whatever comes from outside is taken or refused in one sentence, within seconds: inputs drawn at random."""

import random
import time
import warnings

import pytest

from tests.fuzz.targets import TARGETS, is_refusal

MOST_SECONDS = 5.0  # for an input
FEW = 60
FEW_COMMANDS = 15  # whose parsers are made anew for each


def feed(name: str, seeds: range, folder) -> None:
    """Feeds the inputs of these seeds to a target; says which one is not taken as it should be."""
    target, _ = TARGETS[name]
    num_refused, slowest = 0, (0.0, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of regular expressions
        for seed in seeds:
            began = time.process_time()
            try:
                target(random.Random(f"{name} {seed}"), folder)
            except Exception as error:
                assert is_refusal(error) and isinstance(error, (RuntimeError, ValueError)), f"{name}, seed {seed}"
                num_refused += 1
            slowest = max(slowest, (time.process_time() - began, seed))
    print(
        f"{name}: {len(seeds)} inputs, {num_refused} refused, the slowest (seed {slowest[1]}) took {slowest[0]:.2f} s"
    )
    assert slowest[0] < MOST_SECONDS


@pytest.mark.parametrize("name", TARGETS)
def test_some_inputs(name, tmp_path):
    feed(name, range(FEW_COMMANDS if name == "command lines" else FEW), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_many_inputs(name, tmp_path):
    assert sum(count for _, count in TARGETS.values()) >= 20_000
    feed(name, range(TARGETS[name][1]), tmp_path)
