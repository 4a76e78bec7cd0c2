"""What every program of a training step keeps: one process's training, in the same steps on every rank."""

import contextlib

import keras
import numpy as np
import tensorflow as tf

from tests.cases import in_dtype
from tests.compare import log_distance, relative_distance

NUM_ROWS = 25  # in batches of 8: in the last one, of a single row, rank 1 has none
TOLERANCE, LOGS = 1e-10, 1e-6


def train(kind: str, distributed: bool) -> dict:
    """Trains two epochs in float64; on ranks by the program of this kind, and with what its steps reduced."""
    with in_dtype("float64"), strategy(kind).scope() if distributed else contextlib.nullcontext():
        keras.utils.set_random_seed(3)
        model = network()
        model.compile(
            keras.optimizers.Adam(1e-2, epsilon=1e-2, global_clipnorm=0.5),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=[keras.metrics.SparseCategoricalCrossentropy(from_logits=True)],
            jit_compile=kind == "split",
        )
        x = np.random.default_rng(1).normal(size=[NUM_ROWS, 6])
        y = np.arange(NUM_ROWS) % 3
        history = model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0).history
        result = {
            "weights": model.get_weights(),
            "logs": history,
            "evaluated": model.evaluate(x[:9], y[:9], batch_size=8, verbose=0),
        }
        return {**result, **reduced(model)} if distributed else result


def network() -> keras.Model:
    layers = [
        keras.layers.Dense(8, activation="tanh", kernel_regularizer="l2"),
        keras.layers.Dropout(0.25, seed=4),
        keras.layers.Dense(3),
    ]
    return keras.Sequential([keras.Input([6]), *layers])


def strategy(kind: str):
    """A data-parallel strategy; one that supplies the program, where it does not come by itself."""
    import keras_par as kp

    made = kp.DataParallel()
    if kind not in ("direct", "split"):
        made.keras_par_program = programs()[kind]
    return made


def reduced(model: keras.Model) -> dict:
    """The collectives of the first trace of each step, and the bytes of the model's gradients."""
    from keras_par.keras_patches.models.binding import bound

    calls = bound(model).collectives
    return {
        "calls": {method: [(call.kind, call.name, call.num_bytes) for call in made] for method, made in calls.items()},
        "num_bytes": sum(int(np.prod(v.shape)) * v.value.dtype.size for v in model.trainable_variables),
    }


def programs() -> dict[str, type]:
    """Programs that a strategy may supply: one written for this test, and some with a fault each."""
    from keras_par.keras_patches.trainer.step_program import Direct, Program
    from keras_par.sharding import step as steps

    class Written(Program):
        """Computes the gradients by itself."""

        def run(self, step, batch):
            if self.method != "train_step":
                return self.step_function(batch)
            x, y, _ = keras.utils.unpack_x_y_sample_weight(batch)
            model = self.model
            with step.stock():
                with tf.GradientTape() as tape:
                    outputs = model(x, training=True)
                    loss = model.compute_loss(x, y, outputs, None)
                    model._loss_tracker.update_state(loss, sample_weight=tf.shape(x)[0])
                    loss = model.optimizer.scale_loss(loss)
                variables = model.trainable_variables
                model.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
                return model.compute_metrics(x, y, outputs, None)

    class Twice(Direct):
        def run(self, step, batch):
            super().run(step, batch)
            return super().run(step, batch)

    class Alone(Direct):
        """Does not let the optimizer know of the step, so that nothing is reduced."""

        def run(self, step, batch):
            token = steps._current.set(None)
            try:
                return super().run(step, batch)
            finally:
                steps._current.reset(token)

    class Silent(Direct):
        def run(self, step, batch):
            super().run(step, batch)
            return {}

    class Evaluating(Direct):
        """Trains well, and tests on a batch of its own."""

        def run(self, step, batch):
            changed = batch if self.method == "train_step" else keras.tree.map_structure(tf.zeros_like, batch)
            return super().run(step, changed)

    return {each.__name__.lower(): each for each in (Written, Twice, Alone, Silent, Evaluating)}


def breaches(results: list[dict], twin: dict) -> set[str]:
    """What is wrong with a program, by its results on all ranks and those of one process."""
    found = set()
    first = results[0]
    for result in results:
        if relative_distance(result["weights"], twin["weights"]) > TOLERANCE:
            found.add("other weights")
        if set(result["logs"]) != set(twin["logs"]) or log_distance(result["logs"], twin["logs"]) > LOGS:
            found.add("other logs")
        is_alike = np.shape(result["evaluated"]) == np.shape(twin["evaluated"])
        if not is_alike or not np.allclose(result["evaluated"], twin["evaluated"], rtol=LOGS):
            found.add("another evaluation")
        if any(not np.array_equal(*pair) for pair in zip(result["weights"], first["weights"], strict=True)):
            found.add("ranks that differ")
        if result["calls"] != first["calls"]:
            found.add("other collectives on other ranks")
        of_gradients = [call for call in result["calls"]["train_step"] if call[1].startswith("kp.gradients")]
        if sum(num_bytes for _, _, num_bytes in of_gradients) != result["num_bytes"]:
            found.add("gradients not reduced once")
    return found
