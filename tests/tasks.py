"""What the pools run: each function here is called on every rank, or in the plain process, by its name."""

import contextlib
import warnings

import keras
import numpy as np

from tests.cases import CASES


def strategy_scope(distributed: bool, **options):
    """The scope of a new DataParallel on ranks, nothing in the plain process."""
    if not distributed:
        return contextlib.nullcontext()
    import keras_par as kp

    return kp.DataParallel(**options).scope()


def seed(distributed: bool) -> None:
    """Seeds each rank differently; rank 0's seed is the plain process's, so only its state may count."""
    offset = 0
    if distributed:
        import keras_par as kp

        offset = kp.rank()
    keras.utils.set_random_seed(7 + offset)


def train(name: str, distributed: bool, **options) -> dict:
    """Trains the case `name`; returns weights, optimizer state, logs, an evaluation and predictions."""
    case = CASES[name]
    seed(distributed)
    with strategy_scope(distributed, **options), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Gradients do not exist|Your input ran out of data|.*use_ema", UserWarning)
        model = case.model()
        data = case.data()
        history = model.fit(**data, **case.fit, verbose=0)
    return {
        "weights": [np.asarray(weight) for weight in model.get_weights()],
        "slots": [(v.name, np.asarray(v.value)) for v in getattr(model.optimizer, "variables", [])],
        "logs": history.history,
    }
