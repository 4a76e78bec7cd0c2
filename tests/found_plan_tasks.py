"""What ranks do to find plans for models of random parts and to train by them, and one process without a plan.

All is computed in float64, so that what differs is no rounding.

A drawn model is its kind and parts, as `random_models.build` has them, with `batch_size`, rows on all ranks together,
the mode of the `search`, the text of a `machine`, and the `share` of data parallel's memory that a rank may use; None
for as much as it wants.
"""

import re

import keras

from tests import random_models
from tests.cases import in_dtype
from tests.search_tasks import drawn, machine_from


def find_and_train(kind: str, parts, batch_size: int, search: str, share: float | None, machine: str) -> dict:
    """The mesh and the axes of the plan for a model, and the weights after training by that."""
    with in_dtype("float64"):
        strategy = plan_within(share, kind, parts, batch_size, search=search, machine=machine_from(machine))
    with strategy.scope():
        weights = train(kind, parts, batch_size)
    axes = {axis for entry in strategy.plan.entries for axis in entry.axes if axis is not None}
    return {"mesh": tuple(strategy.plan.mesh.values()), "axes": axes, "weights": weights}


def plan_within(share: float | None, kind: str, parts, batch_size: int, **options):
    """The plan for a share of data parallel's memory, or for what a refusal says is enough."""
    import keras_par as kp

    if share is None:
        return kp.search(drawn(kind, parts), batch_size, **options)
    memory = share * bytes_of_data_parallel(drawn(kind, parts), batch_size, options["machine"])
    keras.utils.clear_session(free_memory=False)
    try:
        return kp.search(drawn(kind, parts), batch_size, memory=memory, **options)
    except ValueError as error:
        enough = re.search(r"give each rank ([\d.]+ [KMG]B)\.$", str(error))
        if enough is None:
            raise
    keras.utils.clear_session(free_memory=False)
    return kp.search(drawn(kind, parts), batch_size, memory=enough[1], **options)


def bytes_of_data_parallel(build, batch_size: int, machine) -> int:
    """What a rank holds by its plan where only rows are divided."""
    import keras_par as kp
    from keras_par.plan.cost import predict
    from keras_par.plan.training_setup import Setting
    from keras_par.searching.model_trace import look_at

    mesh = {"batch": kp.size(), "model": 1}
    return predict(look_at(build), {}, Setting(machine, mesh, "batch", batch_size)).num_bytes


def train(kind: str, parts, batch_size: int) -> list:
    """The weights after an epoch."""
    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(3)
    with in_dtype("float64"):
        model = drawn(kind, parts)()
        x, y = random_models.rows(kind)
        model.fit(x, y, batch_size=batch_size, epochs=1, shuffle=False, verbose=0)
        return model.get_weights()
