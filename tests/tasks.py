"""What the pools run: each function here is called on every rank, or in the plain process, by its name."""

import contextlib
import threading
import time
import warnings

import keras
import numpy as np

from tests.layer_cases import CASES


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


def train(name: str, distributed: bool, same_seed: bool = False, **options) -> dict:
    """Trains the case `name`; returns weights, optimizer state, logs, an evaluation and predictions."""
    case = CASES[name]
    seed(distributed and not same_seed)
    with case.precision(), strategy_scope(distributed, **options), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Gradients do not exist|Your input ran out of data|.*use_ema", UserWarning)
        model = case.model()
        data = case.data()
        history = model.fit(**data, **case.fit, verbose=0)
    return {
        "weights": [np.asarray(weight) for weight in model.get_weights()],
        "slots": [(v.name, np.asarray(v.value)) for v in getattr(model.optimizer, "variables", [])],
        "logs": history.history,
    }


def build(units: int = 16, **compile_options) -> keras.Model:
    """A small compiled classifier of rows with 8 features."""
    from tests.cases import crossentropy, network

    model = (
        network(units=3)
        if units == 16
        else keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(units), keras.layers.Dense(3)])
    )
    options = {"optimizer": keras.optimizers.SGD(0.1), "loss": crossentropy(), **compile_options}
    model.compile(**options)
    return model


def results(num_rows: int, batch_size: int, distributed: bool) -> dict:
    """What evaluate, predict and the *_on_batch methods return after a short fit."""
    from tests.cases import rows

    x, y = rows(num_rows)
    seed(distributed)
    auc = keras.metrics.AUC(from_logits=True, multi_label=True, num_labels=3)
    with strategy_scope(distributed):
        model = build(metrics=[auc, "accuracy"], loss=keras.losses.CategoricalCrossentropy(from_logits=True))
    y = np.eye(3, dtype="float32")[y]
    model.fit(x, y, batch_size=batch_size, epochs=1, verbose=0)
    return {
        "evaluate": model.evaluate(x, y, batch_size=batch_size, verbose=0, return_dict=True),
        "predict": model.predict(x, batch_size=batch_size, verbose=0),
        "predict_on_batch": model.predict_on_batch(x[:5]),
        "train_on_batch": model.train_on_batch(x[:7], y[:7], return_dict=True),
        "test_on_batch": model.test_on_batch(x[:7], y[:7], return_dict=True),
        "weights": model.get_weights(),
    }


def predict_nested(distributed: bool) -> dict:
    """Predictions of a model with two named outputs, of a dataset, with three steps per execution."""
    import tensorflow as tf

    seed(distributed)
    with strategy_scope(distributed):
        inputs = keras.layers.Input((8,))
        model = keras.Model(inputs, {"a": keras.layers.Dense(2)(inputs), "b": keras.layers.Dense(3)(inputs)})
        model.compile("sgd", {"a": "mse", "b": "mse"}, steps_per_execution=3)
    from tests.cases import rows

    return model.predict(tf.data.Dataset.from_tensor_slices(rows(37)[0]).batch(5), verbose=0)


def mixed_overflow(distributed: bool) -> dict:
    """Trains in float16 on rows of which one, on the last rank, makes the first step of each epoch overflow."""
    from tests.cases import rows

    x, y = rows(64)
    x[15] *= 1000.0  # the last row of the first batch
    seed(distributed)
    keras.config.set_dtype_policy("mixed_float16")
    with strategy_scope(distributed):
        model = build(units=24, optimizer=keras.optimizers.SGD(0.05))
        model.optimizer.initial_scale = 2.0**13
    scales = []
    callback = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: scales.append(float(model.optimizer.dynamic_scale.value))
    )
    model.fit(x, y, batch_size=16, epochs=4, shuffle=False, verbose=0, callbacks=[callback])
    return {"scales": scales, "weights": model.get_weights()}


def unsynchronized_batchnorm(distributed: bool = True) -> list:
    """All weights, moving statistics included, after training with batch normalization of each rank's rows."""
    from tests.cases import arrays, compiled, network

    seed(distributed)
    with strategy_scope(distributed, sync_batch_norm=False):
        model = compiled("sgd", network(keras.layers.BatchNormalization()))
    model.fit(**arrays(65), verbose=0)
    return model.get_weights()


def dropout_masks(distributed: bool) -> list:
    """The units that dropout leaves of a batch of ones, as seen by each rank's rows."""
    import tensorflow as tf

    keras.utils.set_random_seed(1)
    seen = []

    class Recorder(keras.Model):
        def __init__(self):
            super().__init__()
            self.dropout, self.dense = keras.layers.Dropout(0.5), keras.layers.Dense(1)

        def call(self, x, training=False):
            dropped = self.dropout(x, training=training)
            if training and tf.executing_eagerly():
                seen.append(dropped.numpy().tolist())
            return self.dense(dropped)

    with strategy_scope(distributed):
        model = Recorder()
        model.build((None, 8))
        model.compile("sgd", "mse", run_eagerly=True)
    model.fit(np.ones((11, 8), "float32"), np.ones((11, 1), "float32"), batch_size=8, verbose=0)
    return seen


def early_stopping(distributed: bool) -> dict:
    """The history under callbacks that decide by validation loss."""
    from tests.cases import arrays, rows

    seed(distributed)
    with strategy_scope(distributed):
        model = build(optimizer=keras.optimizers.SGD(1.5))
    callbacks = [
        keras.callbacks.EarlyStopping(patience=2, restore_best_weights=True),
        keras.callbacks.ReduceLROnPlateau(patience=1, factor=0.3),
    ]
    data = {**arrays(), "epochs": 15}
    history = model.fit(**data, validation_data=rows(33, 5), verbose=0, callbacks=callbacks)
    return {"logs": history.history, "weights": model.get_weights()}


def stop_on_one_rank() -> int:
    """How many steps a rank ran when the callback of rank 1 alone asked to stop after its fifth."""
    import keras_par as kp
    from tests.cases import arrays

    class Stop(keras.callbacks.Callback):
        steps = 0

        def on_train_batch_end(self, batch, logs=None):
            self.steps += 1
            if kp.rank() == 1 and self.steps == 5:
                self.model.stop_training = True

    with strategy_scope(True):
        model = build()
    stop = Stop()
    model.fit(**arrays(), verbose=0, callbacks=[stop])
    return stop.steps


def logs_of_steps(distributed: bool) -> list:
    """The loss and accuracy that a callback sees after each step."""
    from tests.cases import arrays

    seen = []
    seed(distributed)
    with strategy_scope(distributed):
        model = build(metrics=["accuracy"])
    callback = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: seen.append(dict(logs)))
    model.fit(**arrays(65), verbose=0, callbacks=[callback])
    return seen


def count_collectives(name: str, eagerly: bool = False, **options) -> dict:
    """The collectives of a case's steps as they were traced, or with `eagerly` as they ran, and its iterations."""
    import keras_par as kp
    from keras_par.comm import world
    from keras_par.comm.counted import CountedCommunicator

    case = CASES[name]
    keras.utils.set_random_seed(1)
    before = world.replace(CountedCommunicator(world.current()))
    try:
        with kp.DataParallel(**options).scope(), warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            model = case.model()
        model.run_eagerly = eagerly
        model.fit(**case.data(), **case.fit, verbose=0)
        calls = world.current().calls
    finally:
        world.replace(before)
    step = [call for call in calls if call.name.startswith(("kp.gradients", "kp.moments", "kp.divisor", "kp.rows"))]
    return {
        "step": [(call.kind, call.num_bytes) for call in step],
        "names": {call.name for call in step},
        "iterations": int(model.optimizer._iterations.value),
        "num_parameters": sum(int(np.prod(v.shape)) for v in model.trainable_variables),
    }


def broadcast_state() -> dict:
    """Messages in which nine variables of 4 MiB are sent, and what a rank then has."""
    import tensorflow as tf

    import keras_par as kp
    from keras_par.comm import world
    from keras_par.comm.counted import CountedCommunicator

    communicator = CountedCommunicator(world.current())
    variables = [tf.Variable(tf.fill([2**20], float(kp.rank() + i))) for i in range(9)]
    kp.broadcast_variables(variables, communicator=communicator)
    return {"bytes": [call.num_bytes for call in communicator.calls], "values": [float(v[-1]) for v in variables]}


def broadcast_objects() -> list:
    """Objects of rank 0 and of the last rank on this one, and the sentences for what cannot be sent."""
    import keras_par as kp

    class Reluctant:
        def __reduce__(self):
            raise KeyError("one line\nand another")

    last, refused = kp.size() - 1, []
    own = {"units": 8, "rows": np.arange(3) + kp.rank(), "nothing": None, kp.rank(): ("a", 1 + 2j)}
    received = [kp.broadcast_object(own), kp.broadcast_object(own, root_rank=last)]
    for value, root_rank in ((lambda: 0, last), (Reluctant(), 0), (own, kp.size()), (own, -1)):
        try:
            kp.broadcast_object(value, root_rank)
        except ValueError as error:
            refused.append(str(error))
    return [*received, refused]


def kinds_of_sums() -> list[str]:
    """The types of the collective operations in the graph of a sum."""
    import tensorflow as tf

    from keras_par.comm import world

    communicator = world.current()
    function = tf.function(lambda x: communicator.all_reduce([x], "test.kind")[0])
    graph = function.get_concrete_function(tf.TensorSpec([3])).graph
    return [each.type for each in graph.get_operations() if each.type.startswith(("Horovod", "KerasPar"))]


def gathers() -> dict:
    """Tensors gathered at once in a graph, those gathered one by one by Horovod, and the operations of the graph."""
    import tensorflow as tf

    from keras_par.comm import world

    communicator = world.current()
    random = np.random.default_rng([communicator.rank, 1])
    special = np.array([[-0.0, np.nan, np.inf, 1e-45]], "float32")
    tensors = [random.normal(size=(5, 3)).astype("float32"), random.integers(-(2**40), 2**40, 5), special]
    tensors += [random.normal(size=(300, 400)), random.integers(0, 9, (2, 2, 2)).astype("int32")]  # many chunks
    tensors = [tf.constant(tensor) for tensor in tensors]
    function = tf.function(lambda tensors: communicator.all_gather_equal(tensors, "test.gathers"))
    graph = function.get_concrete_function(tensors).graph
    results = [[result.numpy() for result in function(tensors)] for _ in range(3)]
    expected = [communicator.all_gather(tensor, f"test.one{i}").numpy() for i, tensor in enumerate(tensors)]
    return {
        "size": communicator.size,
        "kinds": [each.type for each in graph.get_operations() if each.type.startswith(("Horovod", "KerasPar"))],
        "equal": [[a.tobytes() == b.tobytes() for a, b in zip(each, expected, strict=True)] for each in results],
        "dtypes": [a.dtype == b.dtype and a.shape == b.shape for a, b in zip(results[0], expected, strict=True)],
    }


def sums_in_functions() -> dict:
    """Whether two functions with a sum and a variable each wait for each other, and what a sum's gradient is."""
    import tensorflow as tf

    from keras_par.comm import world

    communicator = world.current()
    variables = [tf.Variable(float(i)) for i in range(2)]

    def total(i: int, x: tf.Tensor) -> tf.Tensor:
        [result] = communicator.all_reduce([x + variables[i]], f"test.function{i}")
        return result

    inner = [tf.function(lambda x, i=i: total(i, x)) for i in range(2)]

    @tf.function
    def outer(x):
        return inner[1](x) + tf.cond(x > 0.0, lambda: inner[0](x), lambda: x)

    @tf.function
    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = total(0, x) ** 2.0
        return tape.gradient(y, x)

    graph = outer.get_concrete_function(tf.TensorSpec([])).graph
    calls = [each for each in graph.get_operations() if each.type in ("StatefulPartitionedCall", "If")]
    return {
        "waits": [calls[0] in each.control_inputs for each in calls[1:]],
        "value": float(outer(tf.constant(2.0))),
        "gradient": float(gradient(tf.constant(float(communicator.rank)))),
    }


def reduce_in_another_order() -> dict[str, int]:
    """Eager sums of two names, which the last rank begins in the opposite order."""
    import tensorflow as tf

    from keras_par.comm import world

    communicator = world.current()
    sums: dict[str, int] = {}

    def reduce(name: str, value: int) -> None:
        [total] = communicator.all_reduce([tf.constant(value)], f"test.{name}")
        sums[name] = int(total)

    calls = [("ones", 1), ("tens", 10)]
    threads = [threading.Thread(target=reduce, args=call) for call in calls]
    for thread in threads if communicator.rank < communicator.size - 1 else reversed(threads):
        thread.start()
        time.sleep(0.5)
    for thread in threads:
        thread.join()
    return sums


def reduce_by_hand(mean: bool, compression) -> list:
    """What a GradientReducer makes of gradients that are rank + 1, of several dtypes, sparse and missing."""
    import tensorflow as tf

    import keras_par as kp

    value = float(kp.rank() + 1)
    gradients = [
        tf.fill([3, 5], value),
        None,
        tf.fill([7], tf.constant(value, tf.float64)),
        tf.IndexedSlices(tf.fill([2, 4], value), tf.constant([kp.rank(), 3]), tf.constant([6, 4])),
        tf.constant(value),
    ]
    reduced = kp.GradientReducer(mean=mean, compression=compression)(gradients)
    return [None if g is None else tf.convert_to_tensor(g).numpy() for g in reduced]


def stock_distribution() -> dict:
    """What keras.distribution's own functions and classes do once kp.init() has run."""
    from tests.cases import arrays

    keras.distribution.initialize()
    found = {
        "devices": keras.distribution.list_devices(),
        "count": keras.distribution.get_device_count("cpu"),
    }
    keras.utils.set_random_seed(7)
    keras.distribution.set_distribution(keras.distribution.DataParallel())
    model = build()
    keras.distribution.set_distribution(None)
    model.fit(**arrays(), verbose=0)
    return {**found, "weights": model.get_weights()}


def train_plainly() -> list:
    """The weights one process ends with where `stock_distribution` starts."""
    from tests.cases import arrays

    keras.utils.set_random_seed(7)
    model = build()
    model.fit(**arrays(), verbose=0)
    return model.get_weights()


def sharded_by_user(num_rows: int) -> list:
    """The weights after training on kp.data.shard's rows, 8 a rank, without shuffling."""
    import tensorflow as tf

    import keras_par as kp
    from tests.cases import rows

    keras.utils.set_random_seed(7)
    data = kp.data.shard(tf.data.Dataset.from_tensor_slices(rows(num_rows))).batch(8)
    with strategy_scope(True):
        model = build()
    model.fit(data, epochs=2, verbose=0)
    return model.get_weights()


def train_on(num_rows: int, batch_size: int) -> list:
    """One process's weights after training on those rows in order."""
    from tests.cases import rows

    keras.utils.set_random_seed(7)
    model = build()
    x, y = rows(num_rows)
    model.fit(x, y, batch_size=batch_size, epochs=2, shuffle=False, verbose=0)
    return model.get_weights()


def shards(num_rows: int, num_shards: int, remainder: str) -> list:
    """The elements of each shard of range(num_rows)."""
    import tensorflow as tf

    import keras_par as kp

    data = tf.data.Dataset.range(num_rows)
    parts = [kp.data.shard(data, num_shards, i, remainder) for i in range(num_shards)]
    for part in parts:
        assert int(part.cardinality()) == len(list(part))
    return [[int(element) for element in part] for part in parts]


def monitor(distributed: bool, bad_step: int | None = None) -> str:
    """What LossMonitor(every=2) prints in two epochs of 3 steps, the last of them ragged."""
    import io

    import keras_par as kp
    from tests.cases import rows

    x, y = rows(43)
    if bad_step is not None:
        x[16 * (bad_step - 1) + 15] = np.nan  # in the last rank's rows
    seed(distributed)
    with strategy_scope(distributed):
        model = build()
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        model.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=0, callbacks=[kp.callbacks.LossMonitor(2)])
    return out.getvalue()


def step_losses() -> list:
    """The loss of each of those steps, computed by plain Keras before the step's update."""
    from tests.cases import crossentropy, rows

    x, y = rows(43)
    keras.utils.set_random_seed(7)
    model = build()
    losses = []
    for _ in range(2):
        for start in (0, 16, 32):
            batch = x[start : start + 16], y[start : start + 16]
            losses.append(float(crossentropy()(batch[1], model(batch[0]))))
            model.train_on_batch(*batch)
    return losses


def checkpoints(directory: str, **options) -> dict:
    """The files RankCheckpoint leaves after 3 epochs of 5 steps, and whether the newest loads back."""
    import keras_par as kp
    from tests.cases import arrays

    seed(True)
    with strategy_scope(True):
        model = build(optimizer=keras.optimizers.Adam(1e-2))
        twin = build(optimizer=keras.optimizers.Adam(1e-2))
    callback = kp.callbacks.RankCheckpoint(directory, **options)
    model.fit(**{**arrays(), "epochs": 3}, verbose=0, callbacks=[callback])
    found = callback.checkpoints()
    kp.load_checkpoint(found[-1], twin)
    return {
        "names": [path.stem for path in found],
        "all": sorted(path.stem for path in callback.folder.iterdir()),
        "folder": callback.folder.name,
        "equal": all(np.array_equal(a, b) for a, b in zip(model.get_weights(), twin.get_weights(), strict=True)),
    }


def fit_with_too_many_columns() -> None:
    """A mistake that Keras refuses, in one process as here."""
    with strategy_scope(True):
        build().fit(np.zeros((32, 99)), np.zeros(32), batch_size=8, verbose=0)


def misuse(which: str) -> None:
    """Does something that must be refused with one sentence on every rank."""
    import tensorflow as tf

    import keras_par as kp
    from tests.cases import rows

    x, y = rows(32)
    if which == "options":
        kp.DataParallel(compression="int8")
    if which == "initialize":
        keras.distribution.initialize(num_processes=17)
    with strategy_scope(True, remainder="drop" if which == "dropped whole" else "exact"):
        model = build(units=24 if which == "other model" and kp.rank() == 1 else 16)
        if which == "jit":
            model = build(
                jit_compile=True,
                loss=keras.losses.SparseCategoricalCrossentropy(True, reduction="mean_with_sample_weight"),
            )
    dataset = tf.data.Dataset.from_tensor_slices((x, y))
    if which == "not batched":
        model.fit(dataset, verbose=0)
    elif which == "distributed by tf.distribute":
        mirrored = tf.distribute.MirroredStrategy(["CPU:0"])
        model.fit(mirrored.experimental_distribute_dataset(dataset.batch(8)), verbose=0)
    elif which == "mirrored":
        with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
            mirrored = keras.Sequential([keras.layers.Dense(1)])
            mirrored.compile("sgd", "mse")
        with kp.DataParallel().scope():
            mirrored.fit(x, y, batch_size=8, verbose=0)
    elif which == "dropped whole":
        model.fit(x, y, batch_size=1, verbose=0)
    elif which == "steps":
        model.fit(dataset.take(32 - 8 * kp.rank()).batch(8), verbose=0)
    elif which == "epochs":
        model.fit(x, y, epochs=1 + kp.rank(), verbose=0)
    elif which == "jit":
        model.fit(x, y, sample_weight=np.ones(32), batch_size=8, verbose=0)
    elif which == "other kind" and kp.rank() == 0:
        model.fit(x, y, batch_size=8, shuffle=False, verbose=0)
    elif which == "other kind":
        model.fit(dataset.batch(8), verbose=0)
    elif which == "scalars in shard":
        kp.data.shard({"x": x, "y": 3})
    elif which == "unknown length":
        kp.data.shard(dataset.filter(lambda *_: True), remainder="wrap")
    elif which == "remainder":
        kp.DataParallel(remainder="pad")
    elif which == "shutdown":
        leaves = keras.callbacks.LambdaCallback(on_train_batch_end=lambda *_, **__: kp.shutdown())
        model.fit(x, y, batch_size=8, verbose=0, callbacks=[leaves])
    elif which == "monitor on one rank":
        model.fit(x, y, verbose=0, callbacks=[kp.callbacks.LossMonitor()] if kp.rank() == 0 else [])
    else:
        model.fit(x, y, batch_size=8, verbose=0)


def unknown_and_unequal() -> int:
    """How many steps a rank trains on data of unknown length of which rank 1 has less."""
    import tensorflow as tf

    import keras_par as kp
    from tests.cases import rows

    data = tf.data.Dataset.from_tensor_slices(rows(48)).take(48 - 16 * kp.rank()).filter(lambda x, y: True)
    with strategy_scope(True):
        model = build()
    model.fit(data.batch(8), epochs=2, verbose=0)
    return int(model.optimizer.iterations.value)


def jit_warnings(kind: str) -> list:
    """The warnings of a jit-compiled model with a training step of its own, or one that normalizes by batches."""
    from tests.cases import OwnStep, arrays, crossentropy, network

    with strategy_scope(True, sync_batch_norm=kind != "unsynchronized"):
        model = OwnStep() if kind == "own step" else network(keras.layers.BatchNormalization())
        model.compile("sgd", crossentropy(), jit_compile=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(**arrays(), verbose=0)
    return [str(warning.message) for warning in caught]


def train_in_two_calls(distributed: bool, backup: str | None = None) -> list:
    """The weights after two calls of fit, 5 steps each, with gradients accumulated over 3 steps."""
    from tests.cases import rows

    x, y = rows(75)
    seed(distributed)
    with strategy_scope(distributed):
        model = build(optimizer=keras.optimizers.Adam(1e-2, gradient_accumulation_steps=3))
    callbacks = [] if backup is None else [keras.callbacks.BackupAndRestore(backup)]
    for _ in range(2):
        model.fit(x, y, batch_size=16, shuffle=False, verbose=0, callbacks=callbacks)
    return model.get_weights()


def ordinary_use() -> dict:
    """Things Keras users do besides fit, while a strategy is set for the whole script."""
    import tensorflow as tf

    import keras_par as kp
    from tests.cases import rows

    x, y = rows(21)
    keras.distribution.set_distribution(kp.DataParallel())
    if kp.rank() == 0:
        build()  # one rank alone compiles another model first
    model = build()
    steps = []
    recorder = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: steps.append(batch))
    callbacks = keras.callbacks.CallbackList([recorder], add_history=True, model=model)
    for _ in range(2):
        model.fit(x, y, batch_size=np.int64(8), epochs=np.int64(2), verbose=0, callbacks=callbacks)
    features = keras.Model(model.inputs, model.layers[0].output)
    dataset = tf.data.Dataset.from_tensor_slices(x).batch(5)
    try:
        model.fit(x, y[:5], verbose=0)
    except ValueError as error:
        alike = type(error).__name__
    model.fit(x, y, batch_size=8, verbose=0)
    return {
        "steps": len(steps),
        "callbacks": [type(each).__name__ for each in callbacks.callbacks],
        "metrics": model.evaluate(x, y, batch_size=8, verbose=0),
        "features": [features.predict(x, verbose=0), features.predict(dataset, verbose=0), features(x).numpy()],
        "alike": alike,
    }


def save_and_load(path: str) -> dict:
    """A model saved under a strategy by rank 0, loaded under it by all, and trained on."""
    import keras_par as kp
    from tests.cases import rows

    x, y = rows(21)
    with strategy_scope(True):
        model = build(optimizer=keras.optimizers.Adam(1e-2))
        model.fit(x, y, batch_size=8, verbose=0)
        if kp.rank() == 0:
            model.save(path)
        kp.barrier()
        loaded = keras.models.load_model(path)
    equal = all(np.array_equal(a, b) for a, b in zip(model.get_weights(), loaded.get_weights(), strict=True))
    for each in (model, loaded):
        each.fit(x, y, batch_size=8, shuffle=False, verbose=0)
    return {"equal": equal, "model": model.get_weights(), "loaded": loaded.get_weights()}


def missing_private_name() -> str:
    """What is said when Keras lacks a name that keras_par relies on."""
    from keras_par.keras_patches.table import private
    from keras_par.keras_patches.table.uses import Use

    before = private.USES
    private.USES = (Use("keras.src.trainers.trainer:Trainer._no_such_method", "to test"),)
    try:
        private.check()
    except RuntimeError as error:
        return str(error)
    finally:
        private.USES = before
    return ""


def fit_with_own_callback(only_on_rank_0: bool = False) -> dict:
    """What a callback of `kp.callbacks.Callback` is told, in order, beside one that comes after it."""
    import keras_par as kp

    told = []

    class Other(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            told.append("Other begins")

    class Noting(kp.callbacks.Callback):
        acts_on_all_ranks = "Noting"

        def meet(self, callbacks):
            told.append("meets " + ", ".join(type(each).__name__ for each in callbacks if each is not self))

        def on_train_begin(self, logs=None):
            told.append("train begins")

        def on_all_begun(self):
            told.append("all have begun")

    with kp.DataParallel().scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    callbacks = [Noting(), Other()] if kp.rank() == 0 or not only_on_rank_0 else [Other()]
    model.fit(np.zeros((8, 2)), np.zeros((8, 1)), verbose=0, callbacks=callbacks)
    return {"told": told, "size": kp.size()}
