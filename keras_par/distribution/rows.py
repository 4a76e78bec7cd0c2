"""Says how many rows of a batch this rank has, for code that needs that number as a constant."""

import keras

from keras_par.comm import world
from keras_par.keras_patches.models.binding import Binding
from keras_par.plan.options import Options
from keras_par.plan.rows import row_range
from keras_par.sharding import step as steps


def local_batch_size(batch_size: int) -> int:
    """This rank's rows of a global batch of so many.

    Example:
        ```python
        with kp.DataParallel().scope():
            inputs = keras.Input((5, 1), batch_size=kp.local_batch_size(64))
            model = keras.Model(inputs, keras.layers.LSTM(4, stateful=True)(inputs))
        model.input_shape  # -> (32, 5, 1)
        kp.local_batch_size(65)  # -> 32 on rank 0, 33 on rank 1
        ```

    For scripts that make noise of a constant shape in a `train_step`, and for layers that want the batch size when they
    are made, as stateful RNNs do. Where the script knows the batch, `ops.shape(x)[0]` says it without this. Works
    inside of a step, under an active strategy, and without one, where all ranks have other rows.

    Args:
        batch_size: rows of a batch on all ranks together, as `fit` takes it.

    Returns:
        A number of rows, all of them before `kp.init()`. It may be 0 where a batch has fewer rows than there are ranks.

    Costs no collective.
    """
    step, strategy = steps.current(), keras.distribution.distribution()
    if step is None and not world.is_started():
        return batch_size
    if step is not None:
        group = step.communicator
    else:
        group = world.current() if strategy is None else Binding(strategy, Options()).data
    start, stop = row_range(batch_size, group.size, group.rank)
    return stop - start
