"""What the ranks of a pool do for the tests of training steps of users' own."""

import warnings

import keras
import numpy as np
import tensorflow as tf

from tests.cases import arrays, crossentropy, network
from tests.script_cases import STEPS
from tests.step_cases import OPTIONS, Own, Sparsity
from tests.tasks import seed, strategy_scope


def train(name: str, distributed: bool) -> dict:
    """Trains the case `name`; its weights and logs, and on ranks how many there are and what was warned of."""
    case = STEPS[name]
    seed(distributed)
    options = OPTIONS[name] if distributed else {}
    scopes = case.precision(), strategy_scope(distributed, **options)
    with scopes[0], scopes[1], warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = case.model()
        history = model.fit(**case.data(), **case.fit, verbose=0)
    result = {
        "weights": [np.asarray(weight) for weight in model.get_weights()],
        "logs": history.history,
        "warnings": [str(each.message) for each in caught if "keras-par" in str(each.message)],
    }
    if distributed:
        import keras_par as kp

        result["size"] = kp.size()
    return result


def judge(losses: list[tuple[float, float, float]]) -> list[str | None]:
    """What losses of a batch and its halves, drawn with random numbers and taken for means, are said to be."""
    from keras_par.keras_patches.trainer.scalar_graph import NEAR, judged

    return [judged(NEAR, *each) for each in losses]


def complaint(kind: str) -> list[str]:
    """What is said of a step that takes gradients in a way that cannot be made right: the warnings and the error."""
    import keras_par as kp

    def mixed(model, x, y):
        with tf.GradientTape() as tape:
            tape.watch(x)
            per_row = keras.losses.sparse_categorical_crossentropy(y, model(x), from_logits=True)
            losses = [per_row, tf.reduce_mean(per_row)]
        tape.gradient(losses, [x, *model.trainable_variables])
        return {}

    def in_a_loop(model, x, y):
        def body(i, total):
            _, gradients = model.taken(x, y)
            return i + 1, [a + b for a, b in zip(total, gradients, strict=True)]

        start = [tf.zeros(variable.shape) for variable in model.trainable_variables]
        _, total = tf.while_loop(lambda i, total: i < 2, body, (0, start))
        model.optimizer.apply(total, model.trainable_variables)
        return {}

    assert kp.size() > 1
    seed(distributed=True)
    with strategy_scope(True), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = Own(network(), {"mixed": mixed, "loop": in_a_loop}[kind])
        model.compile(keras.optimizers.SGD(0.1), "mse")
        try:
            model.fit(**arrays(), verbose=0)
        except ValueError as error:
            return [str(error)]
    return sorted({str(each.message) for each in caught if "keras-par" in str(each.message)})


def looked_at(kind: str, **options) -> list[str]:
    """What rank 0 says of a model's losses in two epochs."""
    import keras_par as kp

    def step(model, x, y):
        with tf.GradientTape() as tape:
            outputs = model(x, training=True)
            per_row = keras.losses.sparse_categorical_crossentropy(y, outputs, from_logits=True)
            loss = {
                "mean": lambda: tf.reduce_mean(per_row),
                "sum": lambda: tf.reduce_sum(per_row),
                "vector": lambda: per_row,
                "across": lambda: tf.reduce_mean(tf.matmul(outputs, outputs, transpose_b=True) ** 2),
                "gathered": lambda: tf.reduce_mean(tf.matmul(outputs, kp.ops.all_gather(outputs), False, True) ** 2),
            }[kind.removesuffix("-dropout")]()
        model.optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return {"loss": tf.reduce_mean(loss)}

    extra = [keras.layers.Dropout(0.1)] if kind.endswith("-dropout") else []
    seed(distributed=True)
    with strategy_scope(True, **options), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = network(Sparsity()) if kind == "add-loss" else Own(network(*extra), step)
        model.compile(keras.optimizers.SGD(0.01), crossentropy())
        model.fit(**arrays(), verbose=0)
    return [str(each.message) for each in caught if "keras-par" in str(each.message)]
