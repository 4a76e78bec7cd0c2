"""Lets each rank use models by itself, where a script means it and says so."""

import contextlib
from collections.abc import Iterator

from keras_par.seam.feed.input import without_distribution
from keras_par.seam.models import binding as bindings
from keras_par.seam.together import run as runs


@contextlib.contextmanager
def independent() -> Iterator[None]:
    """Within it Keras is what it is in one process: models are made, trained and used on this rank alone.

    ```python
    if kp.rank() == 0:
        with kp.independent():
            model.evaluate(x, y)  # the other ranks need not call it
    ```

    Also a model that was compiled under a strategy, unless its variables are divided, is then used without the other
    ranks. Trained within, it differs from theirs afterwards. Costs no collective.
    """
    with bindings.apart(), runs.hidden(), without_distribution():
        yield
