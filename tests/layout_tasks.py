"""What the ranks of a pool do for the tests of model parallelism."""

import keras
import numpy as np

from tests.layout_cases import LAYOUT_CASES

NUM_EPOCHS = 2  # of 5 steps, the last of which has 11 rows instead of 16

OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "adam": lambda: keras.optimizers.Adam(1e-2, global_clipnorm=0.5),
}


def train_plain(name: str, optimizer: str, **options) -> dict:
    """Trains a case by Keras as it is, in one process."""
    return fit(name, optimizer, **options)


def train_divided(name: str, optimizer: str, mesh: tuple[int, ...], **options) -> dict:
    """Trains a case on a mesh, with what each rank holds and sends."""
    import keras_par as kp
    from keras_par.comm import world
    from keras_par.comm.counting import CountingCommunicator

    layout_map = keras.distribution.LayoutMap(keras.distribution.DeviceMesh(mesh, ("batch", "model")))
    for pattern, axes in LAYOUT_CASES[name].layout.items():
        layout_map[pattern] = axes
    strategy = kp.ModelParallel(layout_map=layout_map, batch_dim_name="batch")
    counting = CountingCommunicator(world.current())
    before = world.replace(counting)
    try:
        with strategy.scope():
            result = fit(name, optimizer, **options)
    finally:
        world.replace(before)
    sent = [(call.kind, call.name, call.num_bytes, call.size) for call in counting.calls]
    return {**result, "sent": sent, "rank": kp.rank(), "size": kp.size()}


def fit(name: str, optimizer: str, **options) -> dict:
    case = LAYOUT_CASES[name]
    keras.utils.set_random_seed(11)
    model = case.model()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(OPTIMIZERS[optimizer](), loss, metrics=["accuracy"], **options)
    x, y = case.data()
    history = model.fit(x, y, batch_size=16, epochs=NUM_EPOCHS, verbose=0)
    slots = [variable for variable in model.optimizer.variables if len(variable.shape)]
    held = [getattr(variable, "local_shape", tuple(variable.shape)) for variable in (*model.weights, *slots)]
    return {
        "logs": history.history,
        "weights": model.get_weights(),
        "predictions": model.predict(x[:13], batch_size=8, verbose=0),
        "evaluated": model.evaluate(x, y, batch_size=16, verbose=0),
        "held": sum(int(np.prod(shape)) for shape in held),
        "parameters": sum(int(np.prod(variable.shape)) for variable in (*model.weights, *slots)),
    }
