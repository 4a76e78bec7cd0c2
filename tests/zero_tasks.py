"""What the ranks run for test_zero.py."""

import keras
import numpy as np

from keras_par.sharding.parts import has_own_part
from keras_par.sharding.views import is_sharded
from tests import tasks


def train(name: str, **options) -> dict:
    """As `tasks.train`, with the number of the model's variables of which this rank updates a part."""
    found: dict[str, int] = {}

    class Count(keras.callbacks.Callback):
        def on_train_end(self, logs=None):
            found["parts"] = sum(map(has_own_part, self.model.variables))
            optimizer = getattr(self.model, "optimizer", None)
            found["divided"] = sum(map(is_sharded, optimizer.variables)) if optimizer is not None else 0

    fit = keras.Model.fit

    def counted(self, *args, callbacks=(), **kwargs):
        return fit(self, *args, callbacks=[*(callbacks or ()), Count()], **kwargs)

    keras.Model.fit = counted
    try:
        return tasks.train(name, distributed=True, **options) | found
    finally:
        keras.Model.fit = fit


def equal(one: dict, other: dict) -> list[str]:
    """What differs between two trainings."""
    wrong = [f"weight {i}" for i, (a, b) in enumerate(zip(one["weights"], other["weights"], strict=True)) if not np.array_equal(a, b)]
    for (name, a), (_, b) in zip(one["slots"], other["slots"], strict=True):
        if "gradient_accumulator" not in name and not np.array_equal(a, b):
            wrong.append(f"{name}: {np.abs(a - b).max()}")
    return wrong
