"""Makes the layers that a strategy names compute again in the backward pass, as `keras.RematScope` does."""

from collections.abc import Sequence
from typing import Any

import keras
from keras.src.backend.common.remat import RematMode

from keras_par.comm.agreed import AgreedValueError
from keras_par.plan.layout import matches, nearest, unmatched

SEEN_LAYERS = "_keras_par_layers"  # the names in models under a strategy
MODE = "_remat_mode"  # where Keras has it on layers
BEFORE = "_keras_par_remat_mode"  # what was there


def recompute(model: keras.Model, strategy: Any, patterns: Sequence[str]) -> None:
    """Lets those of the model's layers compute again whose names a pattern matches, and the others do as they did.

    A model within the model that is matched computes again as one, whatever its layers' names are.
    """
    for layer in model.layers:
        vars(strategy).setdefault(SEEN_LAYERS, {})[layer.name] = None
        own = vars(layer)  # not by setattr, which a layer that is built refuses
        if BEFORE in own:
            own[MODE] = own.pop(BEFORE)
        is_named = any(matches(pattern, layer.name) for pattern in patterns)
        if is_named:
            own[BEFORE], own[MODE] = own[MODE], RematMode("full", 0, [])
        if isinstance(layer, keras.Model):
            recompute(layer, strategy, () if is_named else patterns)


def recompute_built(model: keras.Model, strategy: Any, patterns: Sequence[str]) -> None:
    """As `recompute`, for a model that has all of its layers.

    Raises:
        ValueError: on every rank, if a pattern matches no layer of the models under the strategy.
    """
    recompute(model, strategy, patterns)
    names = list(getattr(strategy, SEEN_LAYERS, {}))
    missing = unmatched(patterns, names)
    if missing:
        alike = ", ".join(f"'{name}'" for name in nearest(missing[0], names))
        raise AgreedValueError(
            f"keras-par: recompute's pattern '{missing[0]}' matches no layer; nearest are {alike}: correct it, or "
            "leave it out."
        )
