"""What the pools run for the tests of random numbers."""

import numpy as np
import tensorflow as tf

from tests.random_cases import RANDOM_CASES
from tests.tasks import seed, strategy_scope


def train(name: str, distributed: bool) -> dict:
    """Trains a case; its weights, with the states of its seeds, and its logs."""
    case = RANDOM_CASES[name]
    seed(distributed)
    tf.random.set_seed(9)
    with strategy_scope(distributed):
        model = case.model()
        history = model.fit(**case.data(), **case.fit, verbose=0)
    seeds = [np.asarray(v.value).tolist() for layer in all_layers(model) for v in seed_states(layer)]
    return {"weights": [np.asarray(w) for w in model.get_weights()], "seeds": seeds, "logs": history.history}


def all_layers(model) -> list:
    return [model, *model._flatten_layers(include_self=False)]


def seed_states(layer) -> list:
    return [generator.state for generator in layer._seed_generators]
