"""What the pools run for tests/test_progress_bar.py."""

import contextlib
import io
import time

import keras

from tests.tasks import build, seed, strategy_scope


def progress(
    slow_rank: int | None = None,
    pause: float = 0.05,
    num_rows: int = 75,
    epochs: int = 2,
    distributed: bool = True,
    kind: str = "arrays",
    fits: int = 1,
    bar: dict | None = None,
    **compile_options,
) -> dict:
    """What ProgressBar prints in `fits` times 2 epochs of 5 steps, beside figures that are measured from outside.

    Args:
        slow_rank: the rank whose callback pauses at each step; -1 for all.
        pause: for how many seconds.
        kind: "arrays", "unknown" (a dataset of unknown length) or "sharded" (75 rows cut by kp.data.shard).
        bar: arguments of ProgressBar.
    """
    import tensorflow as tf

    import keras_par as kp
    from tests.cases import rows

    x, y = rows(num_rows)
    data = {"x": x, "y": y, "batch_size": 16, "shuffle": False}
    if kind == "unknown":
        data = {"x": tf.data.Dataset.from_tensor_slices((x, y)).filter(lambda x, y: True).batch(16)}
    elif kind == "sharded":
        data = {"x": kp.data.shard(tf.data.Dataset.from_tensor_slices((x, y))).batch(8)}
    begins, ends = [], []

    def dawdle(batch, logs=None):
        if slow_rank in (-1, kp.rank() if distributed else 0):
            time.sleep(pause)
        ends.append(time.perf_counter())

    seed(distributed)
    with strategy_scope(distributed):
        model = build(metrics=["accuracy"], **compile_options)
    progress_bar = kp.callbacks.ProgressBar(**(bar or {}))
    functions = []
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        for _ in range(fits):
            clock = keras.callbacks.LambdaCallback(
                on_epoch_begin=lambda epoch, logs: begins.append(time.perf_counter()), on_train_batch_end=dawdle
            )
            callbacks = [progress_bar, clock]
            history = model.fit(**data, epochs=epochs, verbose=0, callbacks=callbacks)
            functions.append(id(model.train_function))
    return {
        "printed": out.getvalue(),
        "logs": history.history,
        "seconds": ends[-1] - begins[-1],
        "weights": model.get_weights(),
        "functions": functions,
    }


def without(**compile_options) -> list:
    """The weights after the same training without a ProgressBar."""
    from tests.cases import rows

    x, y = rows(75)
    seed(True)
    with strategy_scope(True):
        model = build(metrics=["accuracy"], **compile_options)
    model.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=0)
    return model.get_weights()


def exchanges(num_epochs: int, every_seconds: float) -> list:
    """The names of the collectives, as they were called eagerly or traced, of epochs of 64 steps with a bar."""
    import keras_par as kp
    from keras_par.comm import world
    from keras_par.comm.counted import CountedCommunicator
    from tests.cases import rows

    x, y = rows(64 * 4)
    before = world.replace(CountedCommunicator(world.current()))
    try:
        with strategy_scope(True):
            model = build()
        bar = kp.callbacks.ProgressBar(every_seconds)
        with contextlib.redirect_stdout(io.StringIO()):
            model.fit(x, y, batch_size=4, epochs=num_epochs, verbose=0, callbacks=[bar])
        calls = world.current().calls
    finally:
        world.replace(before)
    return [call.name for call in calls]


def late_rank(wait: float) -> dict:
    """The time in two collectives that begin at once in one traced step, to which rank 1 comes late."""
    import tensorflow as tf

    import keras_par as kp
    from keras_par.comm import world
    from keras_par.job import rank_heartbeat

    communicator, heartbeat = world.current(), rank_heartbeat.current()

    @tf.function
    def step(x):
        [a] = communicator.all_reduce([x], "test.a")
        b = communicator.all_gather(tf.reshape(x, [1]), "test.b")
        return a, b

    heartbeat.is_measured = True
    step(tf.constant(1.0))
    heartbeat.is_measured = False
    kp.barrier()
    before = heartbeat.collective_seconds
    time.sleep(wait * kp.rank())
    begin = time.perf_counter()
    a, b = step(tf.constant(float(kp.rank() + 1)))
    elapsed = time.perf_counter() - begin
    after = heartbeat.collective_seconds
    communicator.barrier("test.barrier")
    return {
        "a": float(a),
        "b": b.numpy().tolist(),
        "in step": after - before,
        "elapsed": elapsed,
        "eager": heartbeat.collective_seconds - after,
    }


def order_of_clocks() -> dict:
    """Which clock readings of two collectives wait for which, in a traced function, and how often each is read."""
    import tensorflow as tf

    from keras_par.comm.communicator import SoloCommunicator
    from keras_par.job import rank_heartbeat
    from keras_par.job.step_clock import TimedCommunicator

    communicator, heartbeat = TimedCommunicator(SoloCommunicator()), rank_heartbeat.current()

    @tf.function
    def step(x, y):
        [a] = communicator.all_reduce([x], "first")
        [b] = communicator.all_reduce([y], "second")
        return a, b

    heartbeat.is_measured = True
    graph = step.get_concrete_function(tf.TensorSpec([2]), tf.TensorSpec([2])).graph
    heartbeat.is_measured = False
    before = heartbeat.collective_seconds
    clocks = [op for op in graph.get_operations() if op.type == "PyFunc"]

    def ancestors(op, seen):
        for before in [*op.control_inputs, *(tensor.op for tensor in op.inputs)]:
            if before not in seen:
                seen.add(before)
                ancestors(before, seen)
        return seen

    waits = [sorted(clocks.index(op) for op in ancestors(clock, set()) if op in clocks) for clock in clocks]
    values = [value.numpy().tolist() for value in step(tf.constant([1.0, 2.0]), tf.constant([3.0, 4.0]))]
    return {"waits": waits, "values": values, "seconds": heartbeat.collective_seconds - before}


def on_one_rank_only() -> None:
    """Trains with a ProgressBar on rank 0 alone."""
    import keras_par as kp
    from tests.cases import rows

    with strategy_scope(True):
        model = build()
    x, y = rows(32)
    model.fit(x, y, verbose=0, callbacks=[kp.callbacks.ProgressBar()] if kp.rank() == 0 else [])


def width_of_terminals() -> dict:
    """What terminal_width says of a pseudo-terminal with a size, of one without, and of a string."""
    import fcntl
    import os
    import pty
    import struct
    import termios

    from keras_par.callbacks.progress_view import terminal_width

    found = {}
    for columns in (0, 133):
        _, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        with os.fdopen(slave, "w") as stream, contextlib.redirect_stdout(stream):
            found[columns] = terminal_width()
    with contextlib.redirect_stdout(io.StringIO()):
        found["string"] = terminal_width()
    return found
