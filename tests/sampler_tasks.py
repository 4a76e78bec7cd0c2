"""What the pools run to test kp.data.DistributedSampler: each function is called on every rank by its name."""

import keras
import numpy as np

from tests.tasks import build, strategy_scope


def epochs(num_rows: int, num_epochs: int = 1, first_epoch: int = 0, **options) -> list:
    """The row numbers that this rank's sampler gives in each epoch."""
    import keras_par as kp

    sampler = kp.data.DistributedSampler(num_rows, **options)
    found = []
    for epoch in range(first_epoch, first_epoch + num_epochs):
        sampler.set_epoch(epoch)
        found.append(list(sampler))
        assert len(found[-1]) == len(sampler)
    return found


def readings(num_rows: int, num_readings: int, first_epoch: int | None = None, **options) -> dict:
    """The row numbers of successive readings of the sampler's dataset, with iterators that nobody reads between."""
    import tensorflow as tf

    import keras_par as kp

    sampler = kp.data.DistributedSampler(num_rows, **options)
    if first_epoch is not None:
        sampler.set_epoch(first_epoch)
    dataset = sampler.dataset()
    assert int(dataset.cardinality()) == len(sampler)
    assert dataset.element_spec == tf.TensorSpec([], tf.int64)
    ahead = dataset.map(lambda row: row, num_parallel_calls=2).prefetch(2)
    found, unread = [], []
    for _ in range(num_readings):
        unread += [iter(dataset), iter(ahead)]
        found.append([int(row) for row in ahead])
    policy = dataset.map(lambda row: row).batch(2).options().experimental_distribute.auto_shard_policy
    return {"rows": found, "policy": policy.name, "epoch": sampler.epoch}


def train(num_rows: int, num_epochs: int, batch_size: int, first_epoch: int = 0) -> list:
    """The weights after a fit on rows looked up by a sampler's numbers."""
    import tensorflow as tf

    import keras_par as kp
    from tests.cases import rows

    x, y = map(tf.constant, rows(num_rows))
    sampler = kp.data.DistributedSampler(num_rows, seed=3)
    data = sampler.dataset().map(lambda row: (tf.gather(x, row), tf.gather(y, row))).batch(batch_size)
    keras.utils.set_random_seed(7 + kp.rank())
    with strategy_scope(True):
        model = build()
    sampler.set_epoch(first_epoch)
    model.fit(data, initial_epoch=first_epoch, epochs=first_epoch + num_epochs, verbose=0)
    assert sampler.epoch == first_epoch + num_epochs
    return model.get_weights()


def train_in_order(orders: list, num_rows: int, batch_size: int) -> list:
    """One process's weights after an epoch on the rows in each of the given orders."""
    from tests.cases import rows

    x, y = rows(num_rows)
    keras.utils.set_random_seed(7)
    model = build()
    for order in orders:
        model.fit(x[order], y[order], batch_size=batch_size, shuffle=False, verbose=0)
    return model.get_weights()


def global_state() -> list:
    """What NumPy's global generator gives next after a sampler was used, and what it gives without."""
    import keras_par as kp

    found = []
    for use in (True, False):
        np.random.seed(5)
        if use:
            list(kp.data.DistributedSampler(100))
        found.append(float(np.random.random()))
    return found


def refused(**options) -> str:
    """The sentence with which a sampler is refused."""
    import keras_par as kp

    try:
        sampler = kp.data.DistributedSampler(**{"num_rows": 10, **options})
        sampler.set_epoch(-1)
    except ValueError as error:
        return str(error)
    return ""
