"""Lets each rank use models by itself, where a script means it and says so."""

import contextlib
from collections.abc import Iterator

from keras_par.keras_patches.coordination import fit_call as runs
from keras_par.keras_patches.inputs.input import without_distribution
from keras_par.keras_patches.models import binding as bindings


@contextlib.contextmanager
def independent() -> Iterator[None]:
    """Within it Keras is what it is in one process: models are made, trained and used on this rank alone.

    Example:
        ```python
        with kp.DataParallel().scope():
            model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
            model.compile("adam", "mse")
        loss = None
        if kp.rank() == 0:
            with kp.independent():
                loss = model.evaluate(np.ones((100, 8)), np.ones((100, 1)))  # the other ranks need not call it
        loss is None  # -> False on rank 0, True on rank 1
        ```

    Also a model that was compiled under a strategy, unless its variables are divided, is then used without the other
    ranks. Trained within, it differs from theirs afterwards.

    Returns:
        A context manager, to be used by `with`.

    Costs no collective.
    """
    with bindings.independent(), runs.hidden(), without_distribution():
        yield
